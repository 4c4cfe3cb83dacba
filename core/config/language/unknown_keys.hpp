#pragma once

#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "core/text/problem.hpp"
#include "core/config/language/validator.hpp"
#include "core/registry/plugin_index.hpp"

namespace capstan {

struct UnknownKeyOptions {
  bool warn = false;  // report as warnings those that cannot have been meant to change the training
};

/// Reports keys that the language does not have, each with the name that was probably meant, looked for in the whole
/// language and in the parameters of the installed plugins. A file full of another program's keys gets one message.
void report_unknown_keys(const std::vector<UnknownKey>& keys, const Json& document, const PluginIndex& plugins,
                         const UnknownKeyOptions& options, Problems& problems);

}  // namespace capstan
