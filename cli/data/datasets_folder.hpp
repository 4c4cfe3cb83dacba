#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace capstan::cli {

/// The files of a folder that save_to_disk() of the datasets library wrote, in order; nothing for another folder, also
/// for one whose state.json has no "_data_files". Throws RuntimeFault naming the folder or the file: several splits, of
/// which one must be named; a file that is missing.
std::optional<std::vector<std::string>> files_of_datasets_folder(const std::filesystem::path& folder);

}  // namespace capstan::cli
