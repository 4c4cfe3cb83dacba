#pragma once

#include "cli/arguments.hpp"

namespace capstan::cli {

/// `capstan launch --elastic`: processes that train on together when some are lost, leave or join. The launcher alone
/// decides which of them belong together (World), and they read it. Throws UsageError, ConfigError, RuntimeFault.
int launch_elastic(const LaunchArguments& arguments);

}  // namespace capstan::cli
