#pragma once

#include <filesystem>
#include <string>

#include "capstan/sdk/monitor.hpp"

namespace capstan::monitors {

/// The folder in which one run writes its metrics.
struct RunFolder {
  std::filesystem::path path;
  /// An earlier start of the same run has written here, and this start begins at the first step again.
  bool begins_anew = false;
  /// A sentence about a folder that was made outside of the working directory; empty: none was.
  std::string made = "";
};

/// `wanted` for the run that run_info names: the folder itself, or where another run has written there, the first of
/// <wanted>-2, <wanted>-3, ... that is free. A hidden file in the folder names the run, which finds it again when it is
/// resumed. A resumed run goes on in a folder without such a file, and so does a run without a name. Creates the
/// folder. Throws std::exception naming the file.
RunFolder run_folder(const std::filesystem::path& wanted, const sdk::Document& run_info);

/// Tells the user where it is not the folder that was asked for, and of folders made outside of the working directory.
void tell_folder(const sdk::Host& host, const std::filesystem::path& wanted, const RunFolder& got);

}  // namespace capstan::monitors
