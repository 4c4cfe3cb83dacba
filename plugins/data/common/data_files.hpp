#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace capstan::data {

/// One file of training data.
struct DataFile {
  std::filesystem::path path;
  std::string name;  // relative to the folder that was searched, else the file's name: the same wherever the data lies
};

/// The files that `paths` mean: a file stands for itself, a folder for all regular files in it and its subfolders,
/// sorted by path, names that begin with a dot left out; `only_bin` leaves only those that end in ".bin".
///
/// Records of tokens, DATA.json beside DATA.bin or DATA.idx, are left out of a folder, and so are folders in which
/// 'capstan data' keeps pieces of an unfinished result.
/// Each real file counts once: of several paths to it, one that is no symbolic link wins, then the first. Empty files
/// in a folder are left out. `said` is told which paths lead to the same file. Throws sdk::Error naming the path:
/// missing, unreadable, empty, nothing in it.
std::vector<DataFile> find_data_files(const std::vector<std::string>& paths, bool only_bin,
                                      const std::function<void(const std::string&)>& said = {});

}  // namespace capstan::data
