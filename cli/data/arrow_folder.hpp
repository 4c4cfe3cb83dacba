#pragma once

#include <string>

namespace capstan::cli {

/// The program that reads Parquet and arrow files. Throws RuntimeFault, which says how to get it, where Capstan was
/// built without it.
std::string arrow_program();

/// The folder of libarrow.so and libparquet.so that the program needs: of the package pyarrow that $CAPSTAN_ARROW_DIR
/// names, where it lay when Capstan was built, beside the prefix, or of the python3 on the PATH. Throws RuntimeFault
/// that names every folder.
std::string arrow_lib_dir();

}  // namespace capstan::cli
