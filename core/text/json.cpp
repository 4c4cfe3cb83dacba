#include "core/text/json.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/errors.hpp"

namespace capstan {
namespace {

// Values are copied, compared, written and destroyed level by level, on the stack.
constexpr std::size_t kDeepest = 1000;

/// Builds a Json from the parser's events. Positions are not known here: see config/relaxed.hpp for documents of users.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) {
      return add(Json(static_cast<double>(value)));
    }
    return add(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& value) override {
    keys_.back() = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    position_ = position;
    text_ = error.what();
    return false;
  }

  Json result;
  std::size_t position_ = 0;
  std::string text_;

 private:
  bool add(Json value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().is_object()) {
      open_.back().as_object().emplace_back(keys_.back(), std::move(value));
    } else {
      open_.back().push_back(std::move(value));
    }
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kDeepest) {
      text_ = "nested deeper than " + std::to_string(kDeepest) + " levels";
      return false;
    }
    open_.push_back(std::move(value));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return add(std::move(done));
  }

  std::vector<Json> open_;
  std::vector<std::string> keys_;
};

nlohmann::ordered_json to_library(const Json& value) {
  if (value.is_bool()) return value.as_bool();
  if (value.is_integer()) return value.as_integer();
  if (value.is_number()) {
    if (!std::isfinite(value.as_number())) return nullptr;
    return value.as_number();
  }
  if (value.is_string()) return value.as_string();
  if (value.is_array()) {
    auto out = nlohmann::ordered_json::array();
    for (const auto& item : value.as_array()) out.push_back(to_library(item));
    return out;
  }
  if (value.is_object()) {
    auto out = nlohmann::ordered_json::object();
    for (const auto& [key, item] : value.as_object()) out[key] = to_library(item);
    return out;
  }
  return nullptr;
}

}  // namespace

// Each alternative is copied by itself. Where the copy of a variant throws, libstdc++ 12 destroys an alternative that
// was never made, if each of them can be moved without an exception.
Json::Json(const Json& other)
    : value_(
          std::visit([](const auto& value) { return Value(std::in_place_type<std::decay_t<decltype(value)>>, value); },
                     other.value_)),
      offset_(other.offset_) {}

const char* Json::type_name() const {
  static constexpr const char* kNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kNames[value_.index()];
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

Json* Json::find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }

const Json& Json::at(std::string_view key) const {
  if (const Json* found = find(key)) return *found;
  throw std::out_of_range("JSON: no member '" + std::string(key) + "'");
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object{};
  if (Json* found = find(key)) return *found;
  as_object().emplace_back(std::string(key), Json());
  return as_object().back().second;
}

void Json::erase(std::string_view key) {
  if (is_object()) std::erase_if(as_object(), [&](const Member& member) { return member.first == key; });
}

void Json::push_back(Json value) { as_array().push_back(std::move(value)); }

std::size_t Json::size() const {
  if (is_array()) return as_array().size();
  if (is_object()) return as_object().size();
  return 0;
}

bool Json::operator==(const Json& other) const {
  if (is_number() && other.is_number()) {
    return is_integer() && other.is_integer() ? as_integer() == other.as_integer() : as_number() == other.as_number();
  }
  if (is_object() && other.is_object()) {
    return size() == other.size() && std::all_of(as_object().begin(), as_object().end(), [&](const Member& member) {
             const Json* found = other.find(member.first);
             return found && *found == member.second;
           });
  }
  return value_ == other.value_;
}

std::string Json::dump(int indent) const {
  return to_library(*this).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json Json::parse(std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    const auto before = text.substr(0, std::min(builder.position_, text.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    throw ConfigError("JSON, line " + std::to_string(line) + ", column " + std::to_string(column) + ": " +
                      builder.text_);
  }
  return std::move(builder.result);
}

}  // namespace capstan
