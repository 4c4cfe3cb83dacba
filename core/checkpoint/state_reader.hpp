#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// Reads the members of an object of a checkpoint's state.json. A checksum does not tell who computed it: what is
/// missing, of another type or out of its range is a RuntimeFault that names the file, the member and what is expected.
class StateReader {
 public:
  /// `object` must outlive this. `file` is the path of state.json; `path` is that of the object in it, "" for the
  /// whole.
  StateReader(const Json& object, std::string file, std::string path = "");

  bool has(std::string_view key) const { return object_->find(key) != nullptr; }
  StateReader object(std::string_view key) const;
  /// The items of a list, which must be objects.
  std::vector<StateReader> list(std::string_view key) const;
  /// An integer from `least` to `most`.
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most) const;
  /// A list of integers from `least` to `most`.
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most) const;
  /// A finite number.
  double number(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  /// Names and values of all members, which must be texts.
  std::vector<std::pair<std::string, std::string>> texts() const;
  /// Names and values of all members, which must be lists of finite numbers, one at least.
  std::map<std::string, std::vector<double>> lists_of_numbers() const;
  /// Refuses the value of a member. `expected`: "a positive number".
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  const Json& member(std::string_view key) const;
  std::string path_of(std::string_view key) const;

  const Json* object_;
  std::string file_, path_;
};

}  // namespace capstan
