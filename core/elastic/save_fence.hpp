#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace capstan {

/// Which generation of which elastic run writes a checkpoint. Of one run, later generations are greater.
struct SaveToken {
  std::string run;  // hexadecimal digits; empty: no elastic run, which no fence keeps out
  std::int64_t term = 0, generation = 0;
  bool operator==(const SaveToken&) const = default;
  bool precedes(const SaveToken& other) const;
};

/// The generation that this process saves for from here on. [any thread]
void set_save_token(const SaveToken& token);
SaveToken save_token();

/// Keeps processes of an older generation from publishing checkpoints in a folder, also where they have begun before
/// the newer generation: what is being written lies in <dir>/.run-<run>-<term>-<generation>/, and a newer generation
/// moves the folders of older ones into its own. From that one operation on, nothing can be renamed out of the older
/// name. A run that another one has kept out finds <dir>/.run-<run>.left. Throws RuntimeFault where a newer generation
/// has entered, or another run that has begun after this one. Returns the folder; `dir` itself without an elastic run.
std::filesystem::path enter_save_fence(const std::filesystem::path& dir, const SaveToken& token);

/// A rename out of the folder has failed: throws RuntimeFault where the reason is that a newer generation has entered.
void check_save_fence(const std::filesystem::path& dir, const SaveToken& token);

}  // namespace capstan
