#include "core/text/template/builtins.hpp"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "core/text/template/limits.hpp"
#include "core/text/template/run.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::text_template {
namespace {

Value make_namespace(const Arguments& arguments) {
  auto space = std::make_shared<Value::Namespace>();
  for (const Value& value : arguments.positional) {
    for (const auto& member : value.dict()) space->members.push_back(member);
  }
  for (const auto& [name, value] : arguments.named) {
    if (value.space() != nullptr) throw TemplateError("a namespace cannot be put into another value.");
    space->members.emplace_back(name, value);
  }
  return Value(std::move(space));
}

Value make_range(const Arguments& arguments) {
  const List& given = arguments.positional;
  if (given.empty() || given.size() > 3) throw TemplateError("range() takes 1 to 3 numbers.");
  const std::int64_t first = given.size() > 1 ? given[0].integer() : 0;
  const std::int64_t end = given[given.size() > 1 ? 1 : 0].integer();
  const std::int64_t by = given.size() > 2 ? given[2].integer() : 1;
  if (by == 0) throw TemplateError("the step of range() must not be 0.");
  List list;
  for (std::int64_t at = first; by > 0 ? at < end : at > end;) {
    list.emplace_back(at);
    check_items(list.size());
    if (__builtin_add_overflow(at, by, &at)) break;
  }
  return list;
}

Value make_dict(const Arguments& arguments) {
  Dict dict;
  for (const Value& value : arguments.positional) {
    for (const auto& member : value.dict()) dict.push_back(member);
  }
  for (const auto& [name, value] : arguments.named) dict.emplace_back(name, value);
  return dict;
}

Value raise_exception(const Arguments& arguments) {
  throw TemplateError("the template raises: " + arguments.get(0, "message").text());
}

Value strftime_now(const Arguments& arguments) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[256];
  const std::size_t size = std::strftime(text, sizeof text, arguments.get(0, "format").string().c_str(), &parts);
  return std::string(text, size);
}

using TestFunction = bool (*)(const Value& value, const Arguments& arguments);

const std::map<std::string, TestFunction>& tests() {
  static const TestFunction kEqual = [](const Value& value, const Arguments& of) {
    return value == of.get(0, "other");
  };
  static const std::map<std::string, TestFunction> all = {
      {"defined", [](const Value& value, const Arguments&) { return !value.is_undefined(); }},
      {"undefined", [](const Value& value, const Arguments&) { return value.is_undefined(); }},
      {"none", [](const Value& value, const Arguments&) { return value.is_none(); }},
      {"string", [](const Value& value, const Arguments&) { return value.is_string(); }},
      {"mapping", [](const Value& value, const Arguments&) { return value.is_dict(); }},
      {"sequence",
       [](const Value& value, const Arguments&) {
         return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined();
       }},
      {"iterable",
       [](const Value& value, const Arguments&) {
         return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined();
       }},
      {"boolean", [](const Value& value, const Arguments&) { return value.is_bool(); }},
      {"integer", [](const Value& value, const Arguments&) { return value.is_integer(); }},
      {"float", [](const Value& value, const Arguments&) { return value.is_float(); }},
      {"number", [](const Value& value, const Arguments&) { return value.is_number(); }},
      {"true", [](const Value& value, const Arguments&) { return value.is_bool() && value.truth(); }},
      {"false", [](const Value& value, const Arguments&) { return value.is_bool() && !value.truth(); }},
      {"odd", [](const Value& value, const Arguments&) { return value.integer() % 2 != 0; }},
      {"even", [](const Value& value, const Arguments&) { return value.integer() % 2 == 0; }},
      {"equalto", kEqual},
      {"eq", kEqual},
      {"ne", [](const Value& value, const Arguments& of) { return !(value == of.get(0, "other")); }},
      {"in", [](const Value& value, const Arguments& of) {
         const Value& all_of = of.get(0, "other");
         if (all_of.is_string()) return all_of.string().find(value.string()) != std::string::npos;
         const List items = all_of.items();
         return std::find(items.begin(), items.end(), value) != items.end();
       }}};
  return all;
}

}  // namespace

bool knows_test(const std::string& name) { return tests().contains(name); }

bool passes_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw TemplateError("the test '" + name + "' is not supported.");
  static const std::set<std::string> kComparisons = {"equalto", "eq", "ne", "in"};
  std::vector<std::string_view> parameters;
  if (kComparisons.contains(name)) parameters = {"other"};
  arguments.check("the test '" + name + "'", parameters);
  return found->second(value, arguments);
}

const Value* global_of(const std::string& name) {
  static const std::map<std::string, Value> all = {{"namespace", Value(Function(make_namespace))},
                                                   {"range", Value(Function(make_range))},
                                                   {"dict", Value(Function(make_dict))},
                                                   {"raise_exception", Value(Function(raise_exception))},
                                                   {"strftime_now", Value(Function(strftime_now))}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

Value attribute_of(const Value& value, const std::string& name) {
  if (value.space() == nullptr) {
    if (const Value method = method_of(value, name); !method.is_undefined()) return method;
  }
  return element_of(value, name);
}

Value element_of(const Value& value, const Value& key) {
  if (value.is_dict() || value.space() != nullptr) {
    const Value* found = value.find(key);
    if (found == nullptr && key.is_string() && value.is_dict()) return method_of(value, key.string());
    return found ? *found : Value();
  }
  if (key.is_string()) return method_of(value, key.string());
  if ((!value.is_list() && !value.is_string()) || !key.is_integer()) return {};
  const List characters = value.is_string() ? value.items() : List();
  const List& items = value.is_list() ? value.list() : characters;
  const auto size = static_cast<std::int64_t>(items.size());
  const std::int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
  return at >= 0 && at < size ? items[static_cast<std::size_t>(at)] : Value();
}

Value path_of(const Value& value, const std::string& path) {
  Value at = value;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    if (at.is_undefined()) return {};
    at = is_index ? element_of(at, static_cast<std::int64_t>(std::stol(part))) : element_of(at, part);
    begin = end + 1;
  }
  return at;
}

bool is_space(char32_t character) {
  return tokenizer::is_white_space(character) || (character >= 0x1C && character <= 0x1F);
}

std::string stripped(std::string_view text, bool left, bool right, std::string_view characters) {
  const auto goes = [&](std::string_view one) {
    if (!characters.empty()) return characters.find(one) != std::string_view::npos;
    return is_space(tokenizer::character_at(one, 0));
  };
  while (left && !text.empty() && goes(text.substr(0, tokenizer::length_of(text[0])))) {
    text.remove_prefix(tokenizer::length_of(text[0]));
  }
  while (right && !text.empty() && goes(text.substr(tokenizer::last_character(text)))) {
    text = text.substr(0, tokenizer::last_character(text));
  }
  return std::string(text);
}

}  // namespace capstan::text_template
