#include <algorithm>
#include <limits>
#include <map>

#include "core/text/template/builtins.hpp"
#include "core/text/template/limits.hpp"
#include "core/text/template/run.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::text_template {
namespace {

using StringMethod = Value (*)(const std::string& text, const Arguments& arguments);
using DictMethod = Value (*)(const Dict& dict, const Arguments& arguments);

bool is_given(const Value& value) { return !value.is_undefined() && !value.is_none(); }

Value strip_with(const std::string& text, const Arguments& of, bool left, bool right) {
  const Value characters = of.get(0, "chars");
  return stripped(text, left, right, is_given(characters) ? characters.string() : "");
}

/// The parts between runs of white space, at most `most` + 1.
List split_at_space(const std::string& text, std::int64_t most) {
  List parts;
  std::string_view rest = text;
  const auto take_while = [&](bool space) {
    std::size_t end = 0;
    while (end < rest.size() && is_space(tokenizer::character_at(rest, end)) == space) {
      end += tokenizer::length_of(rest[end]);
    }
    const std::string_view taken = rest.substr(0, end);
    rest.remove_prefix(taken.size());
    return taken;
  };
  for (take_while(true); !rest.empty(); take_while(true)) {
    if (static_cast<std::int64_t>(parts.size()) == most) {
      parts.emplace_back(stripped(rest, false, true));
      break;
    }
    parts.emplace_back(std::string(take_while(false)));
    check_items(parts.size());
  }
  return parts;
}

Value split(const std::string& text, const Arguments& of) {
  const Value separator = of.get(0, "sep"), given = of.get(1, "maxsplit");
  const std::int64_t limit = is_given(given) ? given.integer() : -1;
  const std::int64_t most = limit < 0 ? std::numeric_limits<std::int64_t>::max() : limit;
  if (!is_given(separator)) return split_at_space(text, most);
  const std::string& by = separator.string();
  if (by.empty()) throw TemplateError("a text cannot be split at an empty one.");
  List parts;
  std::size_t begin = 0;
  for (std::size_t at = text.find(by); at != std::string::npos && static_cast<std::int64_t>(parts.size()) < most;
       at = text.find(by, begin)) {
    parts.emplace_back(text.substr(begin, at - begin));
    check_items(parts.size());
    begin = at + by.size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

Value replace(const std::string& text, const Arguments& of) {
  const Value old_text = of.get(0, "old"), new_text = of.get(1, "new");
  const std::string &from = old_text.string(), &to = new_text.string();
  const Value given = of.get(2, "count");
  std::int64_t left =
      is_given(given) && given.integer() >= 0 ? given.integer() : std::numeric_limits<std::int64_t>::max();
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = from.empty() ? 0 : text.find(from); at <= text.size() && left > 0; --left) {
    out.append(text, begin, at - begin);
    out += to;
    check_size(out.size());
    begin = at + from.size();
    // An empty text stands before each character and behind the last.
    if (from.empty() && at == text.size()) break;
    at = from.empty() ? at + tokenizer::length_of(text[at]) : text.find(from, begin);
  }
  return out + text.substr(std::min(begin, text.size()));
}

/// Whether an end of the text is one of the texts that are given.
Value has_end(const std::string& text, const Arguments& of, bool front) {
  const Value given = of.get(0, "prefix");
  const List all = given.is_list() ? given.list() : List{given};
  return std::any_of(all.begin(), all.end(), [&](const Value& one) {
    return front ? text.starts_with(one.string()) : text.ends_with(one.string());
  });
}

/// Upper case at the front of each word, or of the text alone; lower case elsewhere.
std::string with_capitals(const std::string& text, bool each_word) {
  std::string out;
  bool at_front = true;
  tokenizer::each_character(text, [&](char32_t character) {
    std::string one;
    tokenizer::append_character(one, character);
    const bool is_letter = tokenizer::is_word(character) && !tokenizer::is_numeric(character) && character != '_';
    out += at_front ? tokenizer::upper_case(one) : tokenizer::lower_case(one);
    at_front = each_word && !is_letter;
  });
  return out;
}

Value find(const std::string& text, const Arguments& of) {
  const std::size_t at = text.find(of.get(0, "sub").string());
  return at == std::string::npos ? Value(std::int64_t{-1}) : Value(Value(text.substr(0, at)).length());
}

Value count(const std::string& text, const Arguments& of) {
  const Value part = of.get(0, "sub");
  if (part.string().empty()) return Value(text).length() + 1;
  std::int64_t times = 0;
  for (std::size_t at = text.find(part.string()); at != std::string::npos;
       at = text.find(part.string(), at + part.string().size())) {
    ++times;
  }
  return times;
}

const std::map<std::string, StringMethod>& string_methods() {
  static const std::map<std::string, StringMethod> all = {
      {"strip", [](const std::string& text, const Arguments& of) { return strip_with(text, of, true, true); }},
      {"lstrip", [](const std::string& text, const Arguments& of) { return strip_with(text, of, true, false); }},
      {"rstrip", [](const std::string& text, const Arguments& of) { return strip_with(text, of, false, true); }},
      {"split", split},
      {"replace", replace},
      {"startswith", [](const std::string& text, const Arguments& of) { return has_end(text, of, true); }},
      {"endswith", [](const std::string& text, const Arguments& of) { return has_end(text, of, false); }},
      {"lower", [](const std::string& text, const Arguments&) { return Value(tokenizer::lower_case(text)); }},
      {"upper", [](const std::string& text, const Arguments&) { return Value(tokenizer::upper_case(text)); }},
      {"title", [](const std::string& text, const Arguments&) { return Value(with_capitals(text, true)); }},
      {"capitalize", [](const std::string& text, const Arguments&) { return Value(with_capitals(text, false)); }},
      {"find", find},
      {"count", count},
      {"splitlines",
       [](const std::string& text, const Arguments&) {
         List lines = split(text, {.positional = {"\n"}, .named = {}}).list();
         if (lines.back().string().empty()) lines.pop_back();
         return Value(std::move(lines));
       }},
      {"join", [](const std::string& text, const Arguments& of) {
         return apply_filter("join", of.get(0, "iterable"), {.positional = {text}, .named = {}});
       }}};
  return all;
}

const std::map<std::string, DictMethod>& dict_methods() {
  static const std::map<std::string, DictMethod> all = {
      {"get",
       [](const Dict& dict, const Arguments& of) {
         const Value key = of.get(0, "key"), otherwise = of.get(1, "default");
         const auto found = std::find_if(dict.begin(), dict.end(), [&](const auto& one) { return one.first == key; });
         if (found != dict.end()) return found->second;
         return otherwise.is_undefined() ? Value::none() : otherwise;
       }},
      {"items", [](const Dict& dict, const Arguments&) { return apply_filter("items", dict, {}); }},
      {"keys", [](const Dict& dict, const Arguments&) { return Value(Value(dict).items()); }},
      {"values", [](const Dict& dict, const Arguments&) {
         List values;
         for (const auto& [key, value] : dict) values.push_back(value);
         return Value(std::move(values));
       }}};
  return all;
}

}  // namespace

Value method_of(const Value& value, const std::string& name) {
  if (value.is_string()) {
    const auto found = string_methods().find(name);
    if (found == string_methods().end()) return {};
    return Value(
        Function([method = found->second, text = value.string()](const Arguments& of) { return method(text, of); }));
  }
  if (value.is_dict()) {
    const auto found = dict_methods().find(name);
    if (found == dict_methods().end()) return {};
    return Value(Function([method = found->second, value](const Arguments& of) { return method(value.dict(), of); }));
  }
  return {};
}

}  // namespace capstan::text_template
