#pragma once

#include <filesystem>
#include <string>

namespace capstan::cli {

/// Returns a sentence that warns of the model by the facts of one record; empty: there is nothing to warn of.
std::string warning_of(const std::filesystem::path& run);

/// Returns sentences that name a cause for a difference by the facts of two records (RunRecord), and say what to do;
/// empty: the facts tell of none.
/// `other_split`: the runs cut a batch into other micro-batches, or give it to other numbers of processes.
std::string cause_of(const std::filesystem::path& reference, const std::filesystem::path& run, bool other_split);

}  // namespace capstan::cli
