#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/config/typed/config.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// Reads and completes the values in force. Paths are dotted key paths; a getter answers its default when the key is
/// absent or of another type, so that rules can be checked on documents that have other errors.
class Effective {
 public:
  /// `consumed`, when given, receives the path of each value that is read.
  Effective(Json& values, std::map<std::string, std::string>& origins, ConsumedKeys* consumed = nullptr)
      : values_(values), origins_(origins), consumed_(consumed) {}

  /// The same values for who only checks them: reading consumes nothing.
  Effective unconsumed() const { return {values_, origins_}; }

  const Json* find(std::string_view path) const;
  bool flag(std::string_view path) const;  // false unless it is true
  std::int64_t integer(std::string_view path, std::int64_t otherwise = 0) const;
  double number(std::string_view path, double otherwise = 0) const;
  std::string text(std::string_view path) const;
  /// Marks a value, and all that lies in it, as handed to a component.
  void consume(const std::string& path) const;
  /// True when the file, the program or the command line gave the key a value.
  bool given(const std::string& path) const;

  /// Sets a value that follows from others.
  void derive(const std::string& path, Json value);

 private:
  Json& values_;
  std::map<std::string, std::string>& origins_;
  ConsumedKeys* consumed_;
};

/// Sets a dotted path, making objects on the way.
void set_path(Json& document, std::string_view path, Json value);

}  // namespace capstan
