#pragma once

#include <filesystem>

namespace capstan {

/// Deletes what an earlier search has left in its folders of results and of descriptions of experiments, except the
/// file `lock`. `had_lock`: a search has worked in `results` before. Throws ConfigError, and has deleted nothing, where
/// a folder holds anything else; RuntimeFault where something cannot be deleted.
void remove_earlier_search(const std::filesystem::path& results, const std::filesystem::path& experiments,
                           const std::filesystem::path& lock, bool had_lock);

}  // namespace capstan
