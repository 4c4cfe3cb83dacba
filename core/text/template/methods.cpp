#include <algorithm>
#include <limits>
#include <map>
#include <optional>

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

/// The lines of a text, as str.splitlines() of Python parts them.
Value split_lines(const std::string& text, const Arguments& of) {
  const bool keeps_ends = of.get(0, "keepends").truth();
  List lines;
  std::size_t begin = 0;
  const auto is_end = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = tokenizer::length_of(text[at]);
    if (!is_end(tokenizer::character_at(text, at))) {
      at += size;
      continue;
    }
    const std::size_t end = at + size + (text.compare(at, 2, "\r\n") == 0 ? 1 : 0);
    lines.emplace_back(text.substr(begin, (keeps_ends ? end : at) - begin));
    check_items(lines.size());
    begin = at = end;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

/// str.format() of Python, without conversions and format specifications.
Value format(const std::string& text, const Arguments& of) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char character = text[at];
    if (character != '{' && character != '}') {
      out += character;
      continue;
    }
    if (text.compare(at + 1, 1, &character, 1) == 0) {
      out += character;
      ++at;
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (character == '}' || end == std::string::npos) {
      throw TemplateError(std::string("the text that 'format' is called on has a single '") + character + "'.");
    }
    const std::string field = text.substr(at + 1, end - at - 1);
    const bool is_place = field.size() < 10 && field.find_first_not_of("0123456789") == std::string::npos;
    std::size_t place = of.positional.size();
    if (field.empty()) {
      place = next++;
    } else if (is_place) {
      place = static_cast<std::size_t>(std::stol(field));
    }
    const Value value = is_place ? of.get(place, "") : of.get(of.positional.size(), field);
    if (value.is_undefined()) throw TemplateError("the method 'format' is given no value for '{" + field + "}'.");
    out += value.text();
    check_size(out.size());
    at = end;
  }
  return out;
}

template <class Function>
struct Method {
  Function call;
  std::optional<std::vector<std::string_view>> parameters;  // none: any arguments
};
template <class Function>
using Methods = std::map<std::string, Method<Function>>;

const std::vector<std::string_view> kNoParameters;

const Methods<StringMethod>& string_methods() {
  static const Methods<StringMethod> all = {
      {"strip",
       {[](const std::string& text, const Arguments& of) { return strip_with(text, of, true, true); }, {{"chars"}}}},
      {"lstrip",
       {[](const std::string& text, const Arguments& of) { return strip_with(text, of, true, false); }, {{"chars"}}}},
      {"rstrip",
       {[](const std::string& text, const Arguments& of) { return strip_with(text, of, false, true); }, {{"chars"}}}},
      {"split", {split, {{"sep", "maxsplit"}}}},
      {"replace", {replace, {{"old", "new", "count"}}}},
      {"startswith",
       {[](const std::string& text, const Arguments& of) { return has_end(text, of, true); }, {{"prefix"}}}},
      {"endswith",
       {[](const std::string& text, const Arguments& of) { return has_end(text, of, false); }, {{"prefix"}}}},
      {"lower",
       {[](const std::string& text, const Arguments&) { return Value(tokenizer::lower_case(text)); }, kNoParameters}},
      {"upper",
       {[](const std::string& text, const Arguments&) { return Value(tokenizer::upper_case(text)); }, kNoParameters}},
      {"title",
       {[](const std::string& text, const Arguments&) { return Value(with_capitals(text, true)); }, kNoParameters}},
      {"capitalize",
       {[](const std::string& text, const Arguments&) { return Value(with_capitals(text, false)); }, kNoParameters}},
      {"find", {find, {{"sub"}}}},
      {"format", {format, std::nullopt}},
      {"count", {count, {{"sub"}}}},
      {"splitlines", {split_lines, {{"keepends"}}}},
      {"join",
       {[](const std::string& text, const Arguments& of) {
          return apply_filter("join", of.get(0, "iterable"), {.positional = {text}, .named = {}});
        },
        {{"iterable"}}}}};
  return all;
}

const Methods<DictMethod>& dict_methods() {
  static const Methods<DictMethod> all = {
      {"get",
       {[](const Dict& dict, const Arguments& of) {
          if (of.positional.empty()) throw TemplateError("the method 'get' needs a key.");
          const Value key = of.get(0, "key"), otherwise = of.get(1, "default");
          const auto found = std::find_if(dict.begin(), dict.end(), [&](const auto& one) { return one.first == key; });
          if (found != dict.end()) return found->second;
          return otherwise.is_undefined() ? Value::none() : otherwise;
        },
        {{"key", "default"}}}},
      {"items", {[](const Dict& dict, const Arguments&) { return apply_filter("items", dict, {}); }, kNoParameters}},
      {"keys", {[](const Dict& dict, const Arguments&) { return Value(Value(dict).items()); }, kNoParameters}},
      {"values",
       {[](const Dict& dict, const Arguments&) {
          List values;
          for (const auto& [key, value] : dict) values.push_back(value);
          return Value(std::move(values));
        },
        kNoParameters}}};
  return all;
}

/// A method of these as a function that checks its arguments and calls the method with what `contents` gives; undefined
/// where there is none of that name.
template <class Function, class Contents>
Value bound(const Methods<Function>& methods, const std::string& name, Contents contents) {
  const auto found = methods.find(name);
  if (found == methods.end()) return {};
  return Value(capstan::text_template::Function([&method = found->second, name, contents](const Arguments& of) {
    if (method.parameters) of.check("the method '" + name + "'", *method.parameters);
    return method.call(contents(), of);
  }));
}

}  // namespace

Value method_of(const Value& value, const std::string& name) {
  if (value.is_string())
    return bound(string_methods(), name, [value]() -> const std::string& { return value.string(); });
  if (value.is_dict()) return bound(dict_methods(), name, [value]() -> const Dict& { return value.dict(); });
  return {};
}

}  // namespace capstan::text_template
