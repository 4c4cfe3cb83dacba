#pragma once

#include <string>

#include "capstan/plugin.h"

namespace capstan {

/// Version 1.`minor` of the plugin ABI.
inline std::string abi_version(unsigned minor = CAPSTAN_ABI_MINOR) {
  return std::to_string(CAPSTAN_ABI_MAJOR) + "." + std::to_string(minor);
}

}  // namespace capstan
