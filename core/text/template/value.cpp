#include "core/text/template/value.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/text/template/run.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::text_template {
namespace {

/// repr() of a float in Python: the fewest digits, with a point or an exponent.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[64];
  const double size = std::fabs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto end = std::to_chars(digits, digits + sizeof digits, value,
                                 scientific ? std::chars_format::scientific : std::chars_format::fixed)
                       .ptr;
  std::string text(digits, end);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

bool prints(char32_t character) { return character >= 0x20 && character != 0x7F; }

std::string quoted(const std::string& text) {
  const bool doubles = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = doubles ? '"' : '\'';
  std::string out(1, quote);
  tokenizer::each_character(text, [&](char32_t character) {
    if (character == '\\' || character == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(character);
    } else if (character == '\n') {
      out += "\\n";
    } else if (character == '\r') {
      out += "\\r";
    } else if (character == '\t') {
      out += "\\t";
    } else if (!prints(character)) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(character));
      out += code;
    } else {
      tokenizer::append_character(out, character);
    }
  });
  return out + quote;
}

void append_json_string(const std::string& text, std::string& out) {
  out += '"';
  for (const char byte : text) {
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    const std::size_t at = kEscaped.find(byte);
    if (at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(byte));
      out += code;
    } else {
      out += byte;
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int level) {
    check_size(out.size());
    if (value.is_list()) {
      const List& items = value.list();
      write_all('[', ']', items.size(), level, [&](std::size_t i) { write(items[i], level + 1); });
    } else if (value.is_dict()) {
      std::vector<std::size_t> order(value.dict().size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      const Dict& items = value.dict();
      if (style_.sorts_keys) {
        std::sort(order.begin(), order.end(),
                  [&](std::size_t one, std::size_t other) { return items[one].first < items[other].first; });
      }
      write_all('{', '}', items.size(), level, [&](std::size_t i) {
        append_json_string(items[order[i]].first.text(), out);
        out += style_.behind_key;
        write(items[order[i]].second, level + 1);
      });
    } else if (value.is_string()) {
      append_json_string(value.string(), out);
    } else if (value.is_bool()) {
      out += value.truth() ? "true" : "false";
    } else if (value.is_none()) {
      out += "null";
    } else if (value.is_number()) {
      out += value.text();
    } else {
      throw TemplateError(std::string("a value of type ") + value.type_name() + " has no JSON.");
    }
  }

  std::string out;

 private:
  template <class Write>
  void write_all(char open, char close, std::size_t count, int level, Write&& write) {
    out += open;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out += style_.between;
      begin_line(level + 1);
      write(i);
    }
    if (count > 0) begin_line(level);
    out += close;
  }
  void begin_line(int level) {
    if (style_.indent < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(style_.indent) * static_cast<std::size_t>(level), ' ');
  }

  const JsonStyle& style_;
};

}  // namespace

Value Arguments::get(std::size_t place, std::string_view name) const {
  if (place < positional.size()) return positional[place];
  for (const auto& [given, value] : named) {
    if (given == name) return value;
  }
  return {};
}

void Arguments::check(const std::string& callee, const std::vector<std::string_view>& parameters) const {
  if (positional.size() > parameters.size()) {
    throw TemplateError(callee + " takes at most " + std::to_string(parameters.size()) +
                        " arguments, and the template gives " + std::to_string(positional.size()) + ".");
  }
  for (const auto& [name, value] : named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) throw TemplateError(callee + " has no argument '" + name + "'.");
    if (found - parameters.begin() < static_cast<std::ptrdiff_t>(positional.size())) {
      throw TemplateError(callee + " is given its argument '" + name + "' twice.");
    }
  }
}

void Value::Contents::add(const Value& value) {
  // A namespace within a list could come to hold that list.
  if (value.space() != nullptr) throw TemplateError("a namespace cannot be put into another value.");
  if (const Contents* within = value.contents()) {
    values += within->values;
    bytes += within->bytes;
    depth = std::max(depth, within->depth + 1);
  } else {
    ++values;
    if (value.is_string()) bytes += value.string().size();
  }
  if (depth >= kDeepest) throw TemplateError("lists lie too deep in each other.");
  check_items(values);
}

Value::Value(List list) {
  Contents contents;
  for (const Value& item : list) contents.add(item);
  kind_ = std::make_shared<const ListOf>(ListOf{std::move(list), contents});
}

Value Value::tuple(List list) {
  Value made(std::move(list));
  ListOf round = *std::get<Lists>(made.kind_);
  round.is_tuple = true;
  made.kind_ = std::make_shared<const ListOf>(std::move(round));
  return made;
}

Value::Value(Dict dict) {
  Contents contents;
  for (const auto& [key, value] : dict) {
    contents.add(key);
    contents.add(value);
  }
  kind_ = std::make_shared<const DictOf>(DictOf{std::move(dict), contents});
}

Value Value::of(const Json& json) {
  if (json.is_null()) return none();
  if (json.is_bool()) return json.as_bool();
  if (json.is_integer()) return json.as_integer();
  if (json.is_number()) return json.as_number();
  if (json.is_string()) return json.as_string();
  if (json.is_array()) {
    List list;
    for (const Json& item : json.as_array()) list.push_back(of(item));
    return list;
  }
  Dict dict;
  for (const auto& [key, value] : json.as_object()) dict.emplace_back(key, of(value));
  return dict;
}

std::size_t Value::weight() const {
  if (const Contents* within = contents()) return within->values + within->bytes / 4096;
  return is_string() ? 1 + string().size() / 256 : 1;
}

const Value::Contents* Value::contents() const {
  if (is_list()) return &std::get<Lists>(kind_)->contents;
  if (is_dict()) return &std::get<Dicts>(kind_)->contents;
  return nullptr;
}

void Value::expect(const char* type) const {
  throw TemplateError(std::string("a value of type ") + type + " is needed, and one of type " + type_name() +
                      " was given.");
}

std::int64_t Value::integer() const {
  if (is_bool()) return std::get<bool>(kind_) ? 1 : 0;
  if (!is_integer()) expect("int");
  return std::get<std::int64_t>(kind_);
}

double Value::number() const {
  if (is_float()) return std::get<double>(kind_);
  if (!is_number()) expect("float");
  return static_cast<double>(integer());
}

const std::string& Value::string() const {
  if (!is_string()) expect("str");
  return *std::get<Strings>(kind_);
}

const List& Value::list() const {
  if (!is_list()) expect("list");
  return std::get<Lists>(kind_)->items;
}

const Dict& Value::dict() const {
  if (!is_dict()) expect("dict");
  return std::get<Dicts>(kind_)->items;
}

const Function& Value::function() const {
  const auto* function = std::get_if<std::shared_ptr<const Function>>(&kind_);
  if (function == nullptr) expect("function");
  return **function;
}

Value::Namespace* Value::space() const {
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&kind_);
  return space ? space->get() : nullptr;
}

List Value::items() const {
  if (is_undefined()) return {};
  if (is_list()) return list();
  List all;
  if (is_dict()) {
    for (const auto& [key, value] : dict()) all.push_back(key);
  } else {
    tokenizer::each_character(string(), [&](char32_t character) {
      std::string one;
      tokenizer::append_character(one, character);
      all.emplace_back(std::move(one));
    });
  }
  return all;
}

std::int64_t Value::length() const {
  if (is_undefined()) return 0;
  if (is_list()) return static_cast<std::int64_t>(list().size());
  if (is_dict()) return static_cast<std::int64_t>(dict().size());
  std::int64_t characters = 0;
  tokenizer::each_character(string(), [&](char32_t) { ++characters; });
  return characters;
}

const Value* Value::find(const Value& key) const {
  const Dict& members = space() ? space()->members : dict();
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.first == key; });
  return found == members.end() ? nullptr : &found->second;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !string().empty();
  return !is_list() && !is_dict() ? true : length() > 0;
}

std::string Value::text() const {
  if (is_string()) return string();
  return is_undefined() ? "" : repr();
}

std::string Value::repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return truth() ? "True" : "False";
  if (is_integer()) return std::to_string(integer());
  if (is_float()) return float_text(number());
  if (is_string()) return quoted(string());
  std::string out;
  if (is_list()) {
    const bool round = std::get<Lists>(kind_)->is_tuple;
    out = round ? "(" : "[";
    for (const Value& item : list()) {
      if (out.size() > 1) out += ", ";
      out += item.repr();
      check_size(out.size());
    }
    if (round && list().size() == 1) out += ',';
    return out + (round ? ')' : ']');
  }
  if (is_dict()) {
    out = "{";
    for (const auto& [key, value] : dict()) {
      if (out.size() > 1) out += ", ";
      out += key.repr();
      out += ": ";
      out += value.repr();
      check_size(out.size());
    }
    return out + "}";
  }
  return std::string("<") + type_name() + ">";
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"undefined", "None", "bool", "int",      "float",
                                           "str",       "list", "dict", "function", "namespace"};
  return kNames[kind_.index()];
}

bool Value::operator==(const Value& other) const {
  if (is_float() || other.is_float()) {
    return is_number() && other.is_number() && number() == other.number();
  }
  if (is_number() && other.is_number()) return integer() == other.integer();
  if (is_list() && other.is_list()) return list() == other.list();
  if (is_dict() && other.is_dict()) {
    return dict().size() == other.dict().size() && std::all_of(dict().begin(), dict().end(), [&](const auto& member) {
             const Value* found = other.find(member.first);
             return found && *found == member.second;
           });
  }
  if (is_string() && other.is_string()) return string() == other.string();
  return kind_ == other.kind_;
}

bool Value::operator<(const Value& other) const {
  if (is_number() && other.is_number()) return number() < other.number();
  if (is_string() && other.is_string()) return string() < other.string();
  throw TemplateError(std::string("values of type ") + type_name() + " and " + other.type_name() +
                      " cannot be compared.");
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace capstan::text_template
