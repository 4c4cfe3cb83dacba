#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"

namespace capstan::tokenizer {

/// A value of tokenizer.json with its place: "tok/tokenizer.json: model.vocab". Every mistake is a RuntimeFault that
/// begins with the place. The document outlives it.
class Field {
 public:
  Field(const Json& value, std::string file) : value_(&value), file_(std::move(file)) {}

  /// The member of that name. A missing one is an error.
  Field at(std::string_view key) const;
  /// The member of that name; nothing where it is missing or null.
  std::optional<Field> find(std::string_view key) const;
  /// The elements of an array.
  std::vector<Field> items() const;
  Field item(std::size_t index) const;

  const std::string& text() const;
  bool flag() const;
  std::int64_t integer() const;
  /// A token's number: 0 to kLargestId.
  std::int32_t id() const;
  bool flag(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key, const std::string& otherwise) const;
  /// The member "type", one of `known`. Anything else is an error that lists them; `what`: "a normalizer".
  const std::string& type(const char* what, std::initializer_list<const char*> known) const;

  const Json& json() const { return *value_; }
  const Json::Array& array() const;
  const Json::Object& object() const;

  [[noreturn]] void fail(const std::string& message) const;

  /// No vocabulary is as large: a number above it is a damaged file's, and would take gigabytes.
  static constexpr std::int64_t kLargestId = 9'999'999;
  /// Bytes of a token whose parts are looked up, each cut of it; a damaged file's would take hours.
  static constexpr std::size_t kLongestToken = 2'000;

 private:
  Field(const Json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}
  [[noreturn]] void expect(const char* type) const;

  const Json* value_;
  std::string file_, path_;
};

}  // namespace capstan::tokenizer
