#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "capstan/sdk/config_mistake.hpp"
#include "core/errors.hpp"

namespace capstan {

/// Begins each line of a plugin's text that is a mistake of the configuration, see capstan/sdk/config_mistake.hpp.
inline constexpr std::string_view kConfigMistakeMark = sdk::kConfigMistake;

/// Whether a text holds such a mistake, behind whatever callers have put before it.
bool has_config_mistake(std::string_view text);
/// The mistakes alone, a line each and without the mark.
std::string config_mistakes_of(std::string_view text);

/// Collects mistakes of several calls, so that one run shows all of them.
class ConfigMistakes {
 public:
  void add(const std::string& text);
  /// Calls `check`, and keeps the mistakes that it throws, as ConfigError or marked by a plugin.
  template <class Check>
  void gather(Check&& check) {
    try {
      std::forward<Check>(check)();
    } catch (const ConfigError& error) {
      add(error.what());
    } catch (const PluginError& error) {
      if (!has_config_mistake(error.what())) throw;
      add(config_mistakes_of(error.what()));
    }
  }
  bool empty() const { return text_.empty(); }
  /// Throws ConfigError with all of them, a line each; nothing happens where there is none.
  void throw_if_any() const;

 private:
  std::string text_;
};

/// Calls `call`. A failure that holds a mistake of the configuration, on this rank or another, is thrown as
/// ConfigError.
template <class Call>
decltype(auto) with_config_mistakes(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const PluginError& error) {
    if (!has_config_mistake(error.what())) throw;
    throw ConfigError(config_mistakes_of(error.what()));
  } catch (const RuntimeFault& error) {
    if (!has_config_mistake(error.what())) throw;
    throw ConfigError(config_mistakes_of(error.what()));
  }
}

/// Calls `call`, whose caller is a plugin: of an exception only the text passes through one. A ConfigError is thrown as
/// a RuntimeFault with marked text, which with_config_mistakes() finds again.
template <class Call>
decltype(auto) mark_config_mistakes(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const ConfigError& mistake) {
    throw RuntimeFault(std::string(kConfigMistakeMark) + mistake.what());
  }
}

}  // namespace capstan
