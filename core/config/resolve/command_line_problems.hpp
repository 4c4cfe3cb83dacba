#pragma once

#include <string>

#include "core/config/typed/config.hpp"

namespace capstan {

/// True when the command line gave the value that a problem is about, or the object that holds it.
bool is_of_command_line(const Problem& problem, const ConfigContext& context);

/// A problem as programs print it: "ds_config.json:3:5: optimizer.params.lr: ...", or "command line:
/// optimizer.params.lr:
/// ..." for a value that the file does not hold.
std::string shown(Problem problem, const ConfigText& text, const ConfigContext& context);

}  // namespace capstan
