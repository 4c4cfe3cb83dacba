#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/config/language/validator.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// What to say of an unknown key.
struct KeyAdvice {
  std::string text;               // "unknown key. Did you mean 'x'?"
  bool changes_training = false;  // what was probably meant has an effect on the training
  bool meant_something = false;   // a name or a remedy was found
  bool lists_names = false;       // the text ends with the names that the section has, behind "unknown key"
  bool repeats = false;           // another key says the same, so that nothing is lost without this one
};

/// Advice on each key, looked for in the whole language and in the parameters of the installed plugins.
std::vector<KeyAdvice> advise(const std::vector<UnknownKey>& keys, const Json& document, const PluginIndex& plugins);

/// True for the keys under which other programs' files name, or hold, a configuration of DeepSpeed.
bool names_settings(std::string_view key);

}  // namespace capstan
