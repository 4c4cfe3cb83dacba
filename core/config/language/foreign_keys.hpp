#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace capstan {

/// A program whose own options stand in configuration files beside DeepSpeed's keys, which ignores them.
struct ForeignProgram {
  const char* name;    // "the transformers Trainer"
  const char* remedy;  // what to give instead, when a file has nothing but this program's keys
  std::span<const std::string_view> keys;

  /// True when the key is one of the program's options; '-' and '_' are the same.
  bool has(std::string_view key) const;
};
std::span<const ForeignProgram> foreign_programs();

/// The path of the key that does here what another program's option does there, or "".
std::string_view foreign_key_here(std::string_view key);

/// Every path that foreign_key_here can answer.
std::vector<std::string_view> foreign_equivalents();

}  // namespace capstan
