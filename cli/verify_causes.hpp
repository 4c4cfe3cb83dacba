#pragma once

#include <filesystem>
#include <string>

namespace capstan::cli {

/// What the facts of one record warn of, as a sentence; empty: nothing.
std::string warning_of(const std::filesystem::path& run);

/// What the facts of two records (RunRecord) tell of why they differ, as sentences with what to do; empty: nothing.
/// `other_split`: the runs cut a batch into other micro-batches, or give it to other numbers of processes.
std::string cause_of(const std::filesystem::path& reference, const std::filesystem::path& run, bool other_split);

}  // namespace capstan::cli
