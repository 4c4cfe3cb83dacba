#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/text/json.hpp"

namespace capstan::text_template {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in the order of insertion

/// Arguments of a call.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at a place or of a name; undefined where it was not given.
  Value get(std::size_t place, std::string_view name) const;
  /// Throws TemplateError where an argument is none of `parameters`, or gives one twice. `callee`: "the filter 'join'".
  void check(const std::string& callee, const std::vector<std::string_view>& parameters) const;
};
using Function = std::function<Value(const Arguments&)>;

/// A value of a template, as Python has it. Lists and dictionaries do not change once they are made.
class Value {
 public:
  /// The result of namespace(): a template may set its members, and those of no other value.
  struct Namespace {
    Dict members;
  };

  Value() = default;  // undefined
  static Value none() { return Value(Kind(nullptr)); }
  Value(bool value) : kind_(value) {}
  Value(std::int64_t value) : kind_(value) {}
  Value(double value) : kind_(value) {}
  Value(std::string value) : kind_(std::make_shared<const std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}
  /// Throws TemplateError where lists and dictionaries lie more than kDeepest deep in each other, or hold more than
  /// kMostItems values in all, those within each other counted wherever they are.
  Value(List list);
  Value(Dict dict);
  /// A list that is written in round brackets.
  static Value tuple(List list);
  Value(Function function) : kind_(std::make_shared<const Function>(std::move(function))) {}
  explicit Value(std::shared_ptr<Namespace> space) : kind_(std::move(space)) {}
  static Value of(const Json& json);

  bool is_undefined() const { return std::holds_alternative<std::monostate>(kind_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(kind_); }
  bool is_bool() const { return std::holds_alternative<bool>(kind_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(kind_); }
  bool is_float() const { return std::holds_alternative<double>(kind_); }
  bool is_number() const { return is_integer() || is_float() || is_bool(); }
  bool is_string() const { return std::holds_alternative<Strings>(kind_); }
  bool is_list() const { return std::holds_alternative<Lists>(kind_); }
  bool is_dict() const { return std::holds_alternative<Dicts>(kind_); }

  /// The value as that type; the other types throw TemplateError that names both.
  std::int64_t integer() const;  // true is 1
  double number() const;
  const std::string& string() const;
  const List& list() const;
  const Dict& dict() const;
  const Function& function() const;
  Namespace* space() const;  // null for other values

  /// The values that a for loop goes through: elements, keys, characters; none of an undefined value.
  List items() const;
  /// Elements, keys, or characters of a string.
  std::int64_t length() const;
  /// The value of a key of a dictionary or namespace; null where it has none.
  const Value* find(const Value& key) const;

  bool truth() const;
  /// str() and repr() of Python; the text of an undefined value is empty.
  std::string text() const;
  std::string repr() const;
  /// "int", "str", "list", ...
  const char* type_name() const;

  bool operator==(const Value& other) const;
  /// Less, by numbers or by strings. Other types throw TemplateError.
  bool operator<(const Value& other) const;

  /// How much work it is to go through the value: pieces of 256 bytes of a string; of a list or dictionary the values
  /// within it, and pieces of 4096 bytes of the strings among them.
  std::size_t weight() const;

  static constexpr int kDeepest = 200;

 private:
  struct Contents {
    void add(const Value& value);
    std::size_t values = 1, bytes = 0;  // those within each other counted wherever they are
    int depth = 0;
  };
  struct ListOf {
    List items;
    Contents contents;
    bool is_tuple = false;
  };
  struct DictOf {
    Dict items;
    Contents contents;
  };
  using Strings = std::shared_ptr<const std::string>;  // copies of a value share its bytes
  using Lists = std::shared_ptr<const ListOf>;
  using Dicts = std::shared_ptr<const DictOf>;
  using Kind = std::variant<std::monostate, std::nullptr_t, bool, std::int64_t, double, Strings, Lists, Dicts,
                            std::shared_ptr<const Function>, std::shared_ptr<Namespace>>;

  explicit Value(Kind kind) : kind_(std::move(kind)) {}
  /// Of a list or dictionary; null for other values.
  const Contents* contents() const;
  [[noreturn]] void expect(const char* type) const;

  Kind kind_;
};

/// json.dumps(value, ensure_ascii=False) of Python. `indent` below 0: one line.
struct JsonStyle {
  int indent = -1;
  std::string between = ", ", behind_key = ": ";
  bool sorts_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace capstan::text_template
