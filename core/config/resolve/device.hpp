#pragma once

#include <string>

#include "core/config/resolve/effective.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// The device to train on, "cpu" or the type of an accelerator: what capstan.run.device says, or for "auto" cuda where
/// a plugin for it is installed and the driver shows this process a GPU. Nothing is loaded to find out. `check_only`:
/// no plugin for it need be installed.
std::string resolve_device(const Effective& values, const PluginIndex& plugins, bool check_only, Problems& problems);

/// The device whose builds of components are looked for: the CPU where no plugin for `device` is installed.
std::string device_of_builds(const std::string& device, const PluginIndex& plugins);

/// Makes the optimizer update in host memory where compressions read its master values.
void update_where_compressions_work(Config& config, const PluginIndex& plugins, Problems& problems);

/// What a run on an accelerator cannot do in this release.
void check_device(const Config& config, const PluginIndex& plugins, Problems& problems);

/// What to add to a refusal that concerns only that device; empty for the CPU.
std::string or_on_cpu(const std::string& device);

}  // namespace capstan
