#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "core/errors.hpp"
#include "core/text/template/builtins.hpp"
#include "core/text/template/limits.hpp"
#include "core/text/template/run.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::text_template {
namespace {

using FilterFunction = Value (*)(const Value& value, const Arguments& arguments);

Value or_else(const Value& value, Value otherwise) { return value.is_undefined() ? std::move(otherwise) : value; }

/// The member of an item at the path that the argument `attribute` gives; the item where it gives none.
Value member_at(const Value& item, const Value& attribute) {
  return attribute.is_undefined() || attribute.is_none() ? item : path_of(item, attribute.text());
}

/// Calls a method of a string: a filter of that name does what the method does.
Value call_method(const Value& value, const char* name, const Arguments& arguments) {
  return method_of(value.text(), name).function()(arguments);
}

/// JSON with the characters outside of printable ASCII, which its strings alone may have, as \\uXXXX.
std::string escaped_json(const std::string& json) {
  std::string out;
  const auto append = [&out](std::uint32_t unit) {
    char text[8];
    std::snprintf(text, sizeof text, "\\u%04x", unit);
    out += text;
  };
  tokenizer::each_character(json, [&](char32_t character) {
    if (character < 0x7F) {
      out += static_cast<char>(character);
    } else if (character < 0x10000) {
      append(character);
    } else {
      append(0xD800 + ((character - 0x10000) >> 10));
      append(0xDC00 + ((character - 0x10000) & 0x3FF));
    }
  });
  return out;
}

/// Reads JSON, as the filter of that name in llama.cpp does.
Value from_json(const Value& value, const Arguments& /*of*/) {
  try {
    return Value::of(Json::parse(value.string()));
  } catch (const ConfigError& error) {
    throw TemplateError(std::string("the filter 'from_json' is given a text that is not JSON: ") + error.what());
  }
}

Value as_json(const Value& value, const Arguments& of) {
  JsonStyle style;
  const Value indent = of.get(1, "indent"), separators = of.get(2, "separators");
  if (!indent.is_undefined() && !indent.is_none()) {
    if (indent.integer() < 0 || indent.integer() > 100) throw TemplateError("the indent of tojson must be 0 to 100.");
    style.indent = static_cast<int>(indent.integer());
    style.between = ",";
  }
  if (!separators.is_undefined() && !separators.is_none()) {
    if (separators.list().size() != 2) throw TemplateError("the separators of tojson must be two texts.");
    style.between = separators.list()[0].string();
    style.behind_key = separators.list()[1].string();
  }
  style.sorts_keys = of.get(3, "sort_keys").truth();
  std::string text = to_json(value, style);
  if (of.get(0, "ensure_ascii").truth()) text = escaped_json(text);
  check_size(text.size());
  return text;
}

Value joined(const Value& value, const Arguments& of) {
  const std::string between = or_else(of.get(0, "d"), "").string();
  const Value attribute = of.get(1, "attribute");
  std::string text;
  bool first = true;
  for (const Value& item : value.items()) {
    if (!first) text += between;
    first = false;
    text += member_at(item, attribute).text();
    check_size(text.size());
  }
  return text;
}

Value items_of(const Value& value, const Arguments& /*of*/) {
  List pairs;
  if (value.is_undefined()) return pairs;
  for (const auto& [key, member] : value.dict()) pairs.push_back(Value::tuple({key, member}));
  return pairs;
}

Value indented(const Value& value, const Arguments& of) {
  const Value width = or_else(of.get(0, "width"), std::int64_t{4});
  const bool first = of.get(1, "first").truth(), blank = of.get(2, "blank").truth();
  if (width.is_number() && (width.integer() < 0 || width.integer() > 1000)) {
    throw TemplateError("the width of indent must be 0 to 1000.");
  }
  const std::string margin =
      width.is_string() ? width.string() : std::string(static_cast<std::size_t>(width.integer()), ' ');
  const std::string text = value.text();
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  check_size(text.size() + lines * margin.size());
  std::string out = first ? margin : "";
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    const bool is_blank = i + 1 == text.size() || text[i + 1] == '\n';
    if (text[i] == '\n' && (blank || !is_blank)) out += margin;
  }
  return out;
}

/// The key by which a value is sorted: a string without its case, unless the case counts.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(tokenizer::lower_case(value.string())) : value;
}

void sort_by(List& items, bool reverse, const std::function<Value(const Value&)>& key) {
  std::stable_sort(items.begin(), items.end(), [&](const Value& one, const Value& other) {
    return reverse ? key(other) < key(one) : key(one) < key(other);
  });
}

Value sorted(const Value& value, const Arguments& of) {
  List items = value.items();
  const bool case_sensitive = of.get(1, "case_sensitive").truth();
  const Value attribute = of.get(2, "attribute");
  sort_by(items, of.get(0, "reverse").truth(),
          [&](const Value& item) { return sort_key(member_at(item, attribute), case_sensitive); });
  return items;
}

Value sorted_dict(const Value& value, const Arguments& of) {
  List pairs = items_of(value, {}).list();
  const bool case_sensitive = of.get(0, "case_sensitive").truth();
  const std::size_t by = or_else(of.get(1, "by"), "key").string() == "value" ? 1 : 0;
  sort_by(pairs, of.get(2, "reverse").truth(),
          [&](const Value& pair) { return sort_key(pair.list()[by], case_sensitive); });
  return pairs;
}

Value without_repeats(const Value& value, const Arguments& of) {
  const bool case_sensitive = of.get(0, "case_sensitive").truth();
  const Value attribute = of.get(1, "attribute");
  List kept, keys;
  for (const Value& item : value.items()) {
    const Value key = sort_key(member_at(item, attribute), case_sensitive);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return kept;
}

/// The arguments from place `first` on.
Arguments behind(const Arguments& arguments, std::size_t first) {
  Arguments rest = arguments;
  const auto count = std::min(first, rest.positional.size());
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

Value mapped(const Value& value, const Arguments& of) {
  List results;
  if (!value.truth()) return results;
  const Value attribute = of.positional.empty() ? of.get(0, "attribute") : Value();
  const Value otherwise = of.positional.empty() ? of.get(1, "default") : Value();
  if (!attribute.is_undefined()) of.check("the filter 'map'", {"attribute", "default"});
  for (const Value& item : value.items()) {
    if (!attribute.is_undefined()) {
      results.push_back(or_else(path_of(item, attribute.text()), otherwise));
    } else {
      results.push_back(apply_filter(of.get(0, "name").string(), item, behind(of, 1)));
    }
  }
  return results;
}

/// The items for which a test of the item, or of its attribute, gives `wanted`.
Value chosen(const Value& value, const Arguments& of, bool by_attribute, bool wanted) {
  const std::size_t place = by_attribute ? 1 : 0;
  const bool has_test = of.positional.size() > place;
  if (!has_test && by_attribute) of.check("the filters 'selectattr' and 'rejectattr'", {"attribute"});
  if (!has_test && !by_attribute) of.check("the filters 'select' and 'reject'", {});
  List kept;
  if (!value.truth()) return kept;
  for (const Value& item : value.items()) {
    const Value looked_at = by_attribute ? path_of(item, of.get(0, "attribute").text()) : item;
    const bool passes =
        has_test ? passes_test(of.positional[place].string(), looked_at, behind(of, place + 1)) : looked_at.truth();
    if (passes == wanted) kept.push_back(item);
  }
  return kept;
}

std::optional<double> number_in(const Value& value) {
  if (value.is_number()) return value.number();
  if (!value.is_string()) return std::nullopt;
  const std::string text = stripped(value.string(), true, true);
  double number = 0;
  const char* end = text.data() + text.size();
  if (text.starts_with("+-")) return std::nullopt;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [at, error] = std::from_chars(begin, end, number);
  return error == std::errc() && at == end ? std::optional(number) : std::nullopt;
}

/// The whole number that a text spells in a base of 2 to 36, as int(text, base) of Python reads it.
std::optional<std::int64_t> integer_in(const Value& value, std::int64_t base) {
  if (base < 2 || base > 36) throw TemplateError("the base of int must be 2 to 36.");
  std::string text = tokenizer::lower_case(stripped(value.string(), true, true));
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.erase(0, 1);
  const char* prefix = base == 2 ? "0b" : base == 8 ? "0o" : base == 16 ? "0x" : nullptr;
  if (prefix != nullptr && text.starts_with(prefix)) text.erase(0, 2);
  if (text.starts_with('-')) return std::nullopt;
  if (minus) text.insert(0, "-");
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, static_cast<int>(base));
  return error == std::errc() && at == end ? std::optional(number) : std::nullopt;
}

Value as_integer(const Value& value, const Arguments& of) {
  if (value.is_integer()) return value;
  if (value.is_string()) {
    if (const auto whole = integer_in(value, or_else(of.get(1, "base"), std::int64_t{10}).integer())) return *whole;
  }
  const auto number = number_in(value);
  if (!number || !(std::fabs(*number) < 9e18)) return or_else(of.get(0, "default"), std::int64_t{0});
  return static_cast<std::int64_t>(*number);
}

Value extreme(const Value& value, const Arguments& of, bool greatest) {
  const List items = value.items();
  if (items.empty()) return {};
  const bool case_sensitive = of.get(0, "case_sensitive").truth();
  const Value attribute = of.get(1, "attribute");
  const auto key = [&](const Value& item) { return sort_key(member_at(item, attribute), case_sensitive); };
  return *std::min_element(items.begin(), items.end(), [&](const Value& one, const Value& other) {
    return greatest ? key(other) < key(one) : key(one) < key(other);
  });
}

Value reversed(const Value& value, const Arguments& /*of*/) {
  List items = value.items();
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return items;
  std::string text;
  for (const Value& item : items) text += item.string();
  return text;
}

Value total(const Value& value, const Arguments& of) {
  const Value attribute = of.get(0, "attribute"), start = or_else(of.get(1, "start"), std::int64_t{0});
  bool whole = !start.is_float();
  double sum = start.number();
  for (const Value& item : value.items()) {
    const Value number = member_at(item, attribute);
    sum += number.number();
    whole = whole && !number.is_float() && std::fabs(sum) < 9e15;
  }
  return whole ? Value(static_cast<std::int64_t>(sum)) : Value(sum);
}

Value rounded(const Value& value, const Arguments& of) {
  const double scale = std::pow(10.0, static_cast<double>(or_else(of.get(0, "precision"), std::int64_t{0}).integer()));
  const std::string method = or_else(of.get(1, "method"), "common").string();
  if (method != "common" && method != "ceil" && method != "floor") {
    throw TemplateError("the method of round must be common, ceil or floor.");
  }
  const double scaled = value.number() * scale;
  const double whole = method == "ceil"    ? std::ceil(scaled)
                       : method == "floor" ? std::floor(scaled)
                                           : std::nearbyint(scaled);
  const double result = whole / scale;
  return std::isfinite(result) ? result : value.number();
}

Value absolute(const Value& value, const Arguments& /*of*/) {
  if (value.is_float()) return std::fabs(value.number());
  const std::int64_t number = value.integer();
  if (number == std::numeric_limits<std::int64_t>::min()) throw TemplateError("a number needs more than 64 bits.");
  return number < 0 ? -number : number;
}

struct Filter {
  FilterFunction apply;
  std::vector<std::string_view> parameters;
};

/// Filters that check their arguments themselves: those that pass them on to another filter, a test or a method.
const std::map<std::string, FilterFunction>& filters_that_pass_on() {
  static const std::map<std::string, FilterFunction> all = {
      {"map", mapped},
      {"select", [](const Value& value, const Arguments& of) { return chosen(value, of, false, true); }},
      {"reject", [](const Value& value, const Arguments& of) { return chosen(value, of, false, false); }},
      {"selectattr", [](const Value& value, const Arguments& of) { return chosen(value, of, true, true); }},
      {"rejectattr", [](const Value& value, const Arguments& of) { return chosen(value, of, true, false); }},
      {"trim", [](const Value& value, const Arguments& of) { return call_method(value, "strip", of); }},
      {"lower", [](const Value& value, const Arguments& of) { return call_method(value, "lower", of); }},
      {"upper", [](const Value& value, const Arguments& of) { return call_method(value, "upper", of); }},
      {"title", [](const Value& value, const Arguments& of) { return call_method(value, "title", of); }},
      {"capitalize", [](const Value& value, const Arguments& of) { return call_method(value, "capitalize", of); }},
      {"replace", [](const Value& value, const Arguments& of) { return call_method(value, "replace", of); }}};
  return all;
}

const std::map<std::string, Filter>& filters() {
  static const Filter kLength = {[](const Value& value, const Arguments&) { return Value(value.length()); }, {}};
  static const Filter kDefault = {[](const Value& value, const Arguments& of) {
                                    const bool replaced =
                                        value.is_undefined() || (of.get(1, "boolean").truth() && !value.truth());
                                    return replaced ? or_else(of.get(0, "default_value"), "") : value;
                                  },
                                  {"default_value", "boolean"}};
  static const std::map<std::string, Filter> all = {
      {"tojson", {as_json, {"ensure_ascii", "indent", "separators", "sort_keys"}}},
      {"length", kLength},
      {"count", kLength},
      {"default", kDefault},
      {"d", kDefault},
      {"join", {joined, {"d", "attribute"}}},
      {"from_json", {from_json, {}}},
      {"items", {items_of, {}}},
      {"indent", {indented, {"width", "first", "blank"}}},
      {"sort", {sorted, {"reverse", "case_sensitive", "attribute"}}},
      {"dictsort", {sorted_dict, {"case_sensitive", "by", "reverse"}}},
      {"unique", {without_repeats, {"case_sensitive", "attribute"}}},
      {"int", {as_integer, {"default", "base"}}},
      {"reverse", {reversed, {}}},
      {"sum", {total, {"attribute", "start"}}},
      {"round", {rounded, {"precision", "method"}}},
      {"abs", {absolute, {}}},
      {"string", {[](const Value& value, const Arguments&) { return Value(value.text()); }, {}}},
      {"safe", {[](const Value& value, const Arguments&) { return value; }, {}}},
      {"list", {[](const Value& value, const Arguments&) { return Value(value.items()); }, {}}},
      {"float",
       {[](const Value& value, const Arguments& of) {
          const auto number = number_in(value);
          return number ? Value(*number) : or_else(of.get(0, "default"), 0.0);
        },
        {"default"}}},
      {"first",
       {[](const Value& value, const Arguments&) {
          const List items = value.items();
          return items.empty() ? Value() : items.front();
        },
        {}}},
      {"last",
       {[](const Value& value, const Arguments&) {
          const List items = value.items();
          return items.empty() ? Value() : items.back();
        },
        {}}},
      {"min",
       {[](const Value& value, const Arguments& of) { return extreme(value, of, false); },
        {"case_sensitive", "attribute"}}},
      {"max",
       {[](const Value& value, const Arguments& of) { return extreme(value, of, true); },
        {"case_sensitive", "attribute"}}}};
  return all;
}

}  // namespace

bool knows_filter(const std::string& name) { return filters().contains(name) || filters_that_pass_on().contains(name); }

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  if (const auto other = filters_that_pass_on().find(name); other != filters_that_pass_on().end()) {
    return other->second(value, arguments);
  }
  const auto found = filters().find(name);
  if (found == filters().end()) throw TemplateError("the filter '" + name + "' is not supported.");
  arguments.check("the filter '" + name + "'", found->second.parameters);
  return found->second.apply(value, arguments);
}

}  // namespace capstan::text_template
