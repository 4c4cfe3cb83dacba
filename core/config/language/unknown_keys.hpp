#pragma once

#include <string>
#include <vector>

#include "core/config/language/validator.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

struct UnknownKeyOptions {
  bool warn = false;    // report as warnings those that cannot have been meant to change the training
  bool strict = false;  // other programs' options are errors, not warnings
};

/// Reports keys that the language does not have, each with the name that was probably meant, looked for in the whole
/// language and in the parameters of the installed plugins. The options of each other program are one warning, because
/// such a file works where it comes from; a file of nothing but them is an error.
void report_unknown_keys(const std::vector<UnknownKey>& keys, const Json& document, const PluginIndex& plugins,
                         const UnknownKeyOptions& options, Problems& problems);

}  // namespace capstan
