#pragma once

#include <string>

namespace capstan::cli {

/// The folder of LibTorch's libraries: where libc10.so has the build id that Capstan was built with. An installed tree
/// names no folder outside itself, so this one is looked for, without loading anything: in $CAPSTAN_TORCH_DIR (the
/// package's folder `torch`, and nowhere else when it is set), where it lay when Capstan was built, beside the prefix
/// as packages for Python lie side by side, and where the python3 on the PATH finds its package. Throws RuntimeFault
/// that names every folder and what it holds.
std::string torch_lib_dir();

/// Lets programs that this process becomes or starts find LibTorch: puts torch_lib_dir() first in LD_LIBRARY_PATH.
void export_torch_lib_dir();

}  // namespace capstan::cli
