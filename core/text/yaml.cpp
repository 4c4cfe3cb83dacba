#include "core/text/yaml.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/text/places.hpp"
#include "core/text/relaxed.hpp"
#include "core/text/utf8.hpp"

namespace capstan {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Fault {
  std::size_t offset;
  std::string message;
};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

/// The number that a plain scalar is: digits may be grouped by '_'.
std::optional<Json> number(std::string_view text) {
  std::string digits(text.starts_with('+') ? text.substr(1) : text);
  const std::string_view magnitude = std::string_view(digits).substr(digits.starts_with('-') ? 1 : 0);
  if (magnitude.empty() || (std::isdigit(static_cast<unsigned char>(magnitude[0])) == 0 && magnitude[0] != '.'))
    return std::nullopt;
  std::erase(digits, '_');
  const char* end = digits.data() + digits.size();
  std::int64_t whole = 0;
  if (const auto [at, error] = std::from_chars(digits.data(), end, whole); error == std::errc() && at == end)
    return Json(whole);
  double value = 0;
  const auto [at, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || at != end || !std::isfinite(value)) return std::nullopt;
  return Json(value);
}

Json plain_scalar(const std::string& text) {
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return Json(true);
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) return Json(false);
  if (auto value = number(text)) return std::move(*value);
  return Json(text);
}

/// Makes a Json of the parser's events.
class Builder : public YAML::EventHandler {
 public:
  Builder(std::size_t first, std::size_t size) : first_(first), size_(size) {}

  Json take() { return std::move(root_); }
  std::size_t offset(const YAML::Mark& mark) const {
    return std::min(first_ + static_cast<std::size_t>(std::max(mark.pos, 0)), size_);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { scalar(mark, "", Json()); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Fault{offset(mark), "aliases have no meaning here. Write the value in their place."};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    const bool plain = tag == "?" || tag.empty();
    if (!plain) check_tag(mark, tag);
    const bool text = tag == "!" || tag == "tag:yaml.org,2002:str";
    scalar(mark, value, text ? Json(value) : plain_scalar(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, Json::array());
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark, tag, Json::object());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Json value;
    std::optional<std::string> key;
    std::size_t key_offset = 0;
  };

  bool wants_key() const { return !open_.empty() && open_.back().value.is_object() && !open_.back().key; }

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?" || tag == "!" || tag.starts_with("tag:yaml.org,2002:")) return;
    throw Fault{offset(mark), "the tag '" + tag + "' has no meaning here. Remove it."};
  }

  void count(const YAML::Mark& mark) {
    if (++values_ <= kMostValues) return;
    throw Fault{offset(mark),
                "more than " + std::to_string(kMostValues) + " values; a configuration has a few hundred."};
  }

  void scalar(const YAML::Mark& mark, const std::string& text, Json value) {
    count(mark);
    if (!wants_key()) return add(mark, std::move(value));
    if (text.empty()) throw Fault{offset(mark), "a name is missing before this ':'."};
    if (text.size() > kLongestKey) {
      throw Fault{offset(mark), "a key of " + std::to_string(text.size()) + " bytes; the longest allowed has " +
                                    std::to_string(kLongestKey) + "."};
    }
    open_.back().key = text;
    open_.back().key_offset = offset(mark);
  }

  void open(const YAML::Mark& mark, const std::string& tag, Json value) {
    count(mark);
    check_tag(mark, tag);
    if (wants_key()) throw Fault{offset(mark), "a key is a name here, not a list or a mapping."};
    if (open_.size() >= kDeepestNesting) {
      throw Fault{offset(mark), "nested deeper than " + std::to_string(kDeepestNesting) + " levels."};
    }
    value.set_offset(offset(mark));
    open_.push_back({std::move(value), std::nullopt, 0});
  }

  void close() {
    Json done = std::move(open_.back().value);
    open_.pop_back();
    put(std::move(done));
  }

  void add(const YAML::Mark& mark, Json value) {
    value.set_offset(offset(mark));
    put(std::move(value));
  }

  void put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.value.is_object()) {
      value.set_offset(parent.key_offset);
      parent.value.as_object().emplace_back(*std::exchange(parent.key, std::nullopt), std::move(value));
    } else {
      parent.value.push_back(std::move(value));
    }
  }

  std::size_t first_, size_, values_ = 0;
  std::vector<Open> open_;
  Json root_;
};

Json read(std::string_view text) {
  const std::size_t first = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  Builder builder(first, text.size()), second(first, text.size());
  std::istringstream in{std::string(text.substr(first))};
  try {
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(builder)) return Json();
    if (parser.HandleNextDocument(second)) throw Fault{first, "several documents in one file. Keep one."};
  } catch (const YAML::Exception& error) {
    throw Fault{error.mark.is_null() ? first : builder.offset(error.mark), "not valid YAML: " + error.msg + "."};
  }
  return builder.take();
}

}  // namespace

bool looks_like_yaml(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    line.remove_prefix(begin);
    if (line.starts_with("---")) return true;
    const auto name = line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    if (name == 0 || name == std::string_view::npos) return false;
    const auto colon = line.find_first_not_of(" \t", name);
    return colon != std::string_view::npos && line[colon] == ':' &&
           (colon + 1 == line.size() || std::string_view(" \t\r").find(line[colon + 1]) != std::string_view::npos);
  }
  return false;
}

std::optional<Json> parse_yaml(std::string_view text, Problems& problems) {
  if (text.size() > kLargestYaml) {
    problems.error(
        "", "larger than 1 MiB (" + std::to_string(text.size()) + " bytes); a configuration has a few kilobytes.");
    return std::nullopt;
  }
  const TextPlaces places(text);
  const auto refuse = [&](std::size_t offset, std::string message) {
    problems.all().push_back(
        {Problem::Severity::kError, "", std::move(message), places.line(offset), places.column(offset)});
    return std::nullopt;
  };
  if (const auto wrong = first_invalid_utf8(text))
    return refuse(*wrong, "not UTF-8 text from here on; save the file as UTF-8.");
  try {
    Json root = read(text);
    if (!root.is_object()) return refuse(0, "a configuration is a mapping of keys to values, and this is none.");
    reject_duplicates(root, places, problems);
    return root;
  } catch (const Fault& fault) {
    return refuse(fault.offset, fault.message);
  }
}

}  // namespace capstan
