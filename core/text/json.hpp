#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace capstan {

/// A JSON value that keeps its members in order and remembers where in the text it stood.
///
/// The light face of JSON for the rest of the core: only the .cpp files in core/config include the JSON library.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  Json(const Json& other);
  Json(Json&&) noexcept = default;
  Json& operator=(const Json&) = default;
  Json& operator=(Json&&) noexcept = default;
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json object() { return Json(Object{}); }
  static Json array() { return Json(Array{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  /// "null", "boolean", "integer", "number", "string", "array", "object".
  const char* type_name() const;

  /// The value as that type. Throws std::bad_variant_access when it is of another; as_number takes integers too.
  bool as_bool() const { return std::get<bool>(value_); }
  std::int64_t as_integer() const { return std::get<std::int64_t>(value_); }
  double as_number() const { return is_integer() ? static_cast<double>(as_integer()) : std::get<double>(value_); }
  const std::string& as_string() const { return std::get<std::string>(value_); }
  const Array& as_array() const { return std::get<Array>(value_); }
  Array& as_array() { return std::get<Array>(value_); }
  const Object& as_object() const { return std::get<Object>(value_); }
  Object& as_object() { return std::get<Object>(value_); }

  /// The member of that name, or null when there is none or this is no object.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  /// The member of that name. Throws std::out_of_range naming the key.
  const Json& at(std::string_view key) const;
  /// The member of that name, added as null when there is none. Turns a null into an object.
  Json& operator[](std::string_view key);
  void erase(std::string_view key);
  void push_back(Json value);
  std::size_t size() const;  // members of an array or object, otherwise 0

  /// Equal values; order of members and where they stood do not count, 1 equals 1.0.
  bool operator==(const Json& other) const;

  /// Strict JSON. indent < 0: one line. Numbers read back to the same value; NaN and infinities become null.
  std::string dump(int indent = -1) const;

  /// Strict JSON only, at most 1000 levels deep. Throws ConfigError with line and column.
  static Json parse(std::string_view text);

  /// Byte offset in the text it was read from, where known.
  std::optional<std::size_t> offset() const { return offset_; }
  void set_offset(std::size_t offset) { offset_ = offset; }

 private:
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object>;
  Value value_;
  std::optional<std::size_t> offset_;
};

}  // namespace capstan
