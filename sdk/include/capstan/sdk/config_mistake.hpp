#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "capstan/sdk/component.hpp"

/// Mistakes of the configuration that a component finds only when it knows the model or the data: a key that names a
/// layer which the model lacks. The engine reports them as its own ConfigError (exit code 3), without the component's
/// name, where an Error is a fault of the plugin (exit code 4).
///
/// In C: capstan_host.set_error with a text that begins with "[configuration] ", then the key's path, ": " and what was
/// found. Several mistakes are as many lines, each of which begins so.
namespace capstan::sdk {

inline constexpr std::string_view kConfigMistake = "[configuration] ";

/// Throw it out of any function of a component.
class ConfigMistake : public Error {
 public:
  /// `key`: the path from the file's root, "compression_training.row_pruning.shared_parameters.num_heads".
  ConfigMistake(std::string_view key, std::string_view message)
      : Error(std::string(kConfigMistake) + std::string(key) + ": " + std::string(message)) {}

 private:
  friend class ConfigMistakes;
  explicit ConfigMistake(const std::string& lines) : Error(lines) {}
};

/// Collects the mistakes of several checks, so that one run shows all of them.
class ConfigMistakes {
 public:
  void add(std::string_view key, std::string_view message) { add(ConfigMistake(key, message)); }
  /// Calls `check`, and keeps the ConfigMistake that it throws.
  template <class Check>
  void gather(Check&& check) {
    try {
      std::forward<Check>(check)();
    } catch (const ConfigMistake& mistake) {
      add(mistake);
    }
  }
  bool empty() const { return lines_.empty(); }
  /// Throws one ConfigMistake that has them all, a line each; nothing happens where there is none.
  void throw_if_any() const {
    if (!empty()) throw ConfigMistake(lines_);
  }

 private:
  void add(const ConfigMistake& mistake) { lines_ += (lines_.empty() ? "" : "\n") + std::string(mistake.what()); }

  std::string lines_;
};

}  // namespace capstan::sdk
