#pragma once

#include "cli/arguments.hpp"

namespace capstan::cli {

/// Searches a recorded table with every installed tuner, or the configuration's one, and prints how near each comes.
int tune_replay(const TuneArguments& arguments);

}  // namespace capstan::cli
