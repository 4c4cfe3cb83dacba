#pragma once

#include <string>

#include "cli/arguments.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// Whether the file has a component that trains: an optimizer, a schedule or a model.
bool can_be_verified(const std::string& file);

/// Runs `capstan verify` for each of those components, on a small model and made text. `params`: values in place of
/// their defaults. Returns the exit code of the first that is not 0, or 0. Throws RuntimeFault.
int verify_plugin(const PluginsCheckArguments& arguments, const Json& params);

}  // namespace capstan::cli
