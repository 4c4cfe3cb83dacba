#include "core/text/relaxed.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "core/text/places.hpp"

namespace capstan {
namespace {

/// Builds a Json from the parser's events; the n-th key, scalar or opening bracket stands at the n-th origin.
class PlacedBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit PlacedBuilder(const std::vector<std::size_t>& origins) : origins_(origins) {}

  bool null() override { return scalar(Json()); }
  bool boolean(bool value) override { return scalar(Json(value)); }
  bool number_integer(number_integer_t value) override { return scalar(Json(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return scalar(Json(static_cast<double>(value)));
    return scalar(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return scalar(Json(value)); }
  bool string(string_t& value) override { return scalar(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool key(string_t& value) override {
    open_.back().key = std::move(value);
    open_.back().key_offset = next_origin();
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw std::logic_error(std::string("the lexer let through what the parser refuses: ") + error.what());
  }

  Json take() { return std::move(result_); }

 private:
  struct Open {
    Json value;
    std::string key;
    std::size_t key_offset = 0;
  };

  std::size_t next_origin() { return origins_.at(next_++); }
  bool scalar(Json value) {
    value.set_offset(next_origin());
    return add(std::move(value));
  }
  bool add(Json value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.value.is_object()) {
      value.set_offset(parent.key_offset);
      parent.value.as_object().emplace_back(std::move(parent.key), std::move(value));
    } else {
      parent.value.push_back(std::move(value));
    }
    return true;
  }
  bool open(Json value) {
    value.set_offset(next_origin());
    open_.push_back({std::move(value)});
    return true;
  }
  bool close() {
    Json done = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(done));
  }

  const std::vector<std::size_t>& origins_;
  std::size_t next_ = 0;
  std::vector<Open> open_;
  Json result_;
};

void reject_duplicates(Json& value, const std::string& path, const TextPlaces& places, Problems& problems) {
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      reject_duplicates(value.as_array()[i], element_path(path, i), places, problems);
    }
  }
  if (!value.is_object()) return;
  std::unordered_map<std::string, std::size_t> seen;
  Json::Object kept;
  for (auto& [key, member] : value.as_object()) {
    const std::size_t offset = member.offset().value_or(0);
    const auto [first, fresh] = seen.try_emplace(key, offset);
    if (!fresh) {
      problems.all().push_back({Problem::Severity::kError, join_path(path, key),
                                "given twice in one object, first at line " +
                                    std::to_string(places.line(first->second)) + ". Keep one of them.",
                                places.line(offset), places.column(offset)});
      continue;
    }
    reject_duplicates(member, join_path(path, key), places, problems);
    kept.emplace_back(key, std::move(member));
  }
  value.as_object() = std::move(kept);
}

}  // namespace

void reject_duplicates(Json& value, const TextPlaces& places, Problems& problems) {
  reject_duplicates(value, "", places, problems);
}

std::optional<Json> parse_relaxed(std::string_view text, Problems& problems) {
  const auto strict = make_strict(text, problems);
  if (!strict) return std::nullopt;
  PlacedBuilder builder(strict->origins);
  nlohmann::json::sax_parse(strict->text, &builder);
  Json root = builder.take();
  reject_duplicates(root, TextPlaces(text), problems);
  return root;
}

}  // namespace capstan
