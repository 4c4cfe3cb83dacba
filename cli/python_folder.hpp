#pragma once

#include <string>

namespace capstan::cli {

/// The folder of a package of the python3 on the PATH, which is found without importing it; empty where there is none.
std::string python_package_folder(const std::string& name);

}  // namespace capstan::cli
