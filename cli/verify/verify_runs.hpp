#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/verify/verify_variants.hpp"

namespace capstan::cli {

/// Runs the variants of a verification, each in processes of its own: `capstan verify --record`, or a program that
/// reads how to train from a file, its last word.
class VerifyRuns {
 public:
  /// `seed`: capstan.run.seed.
  VerifyRuns(const VerifyArguments& arguments, std::uint64_t seed) : arguments_(arguments), seed_(seed) {}

  enum class End { kRecorded, kRefused, kFailed };
  struct Result {
    End end = End::kRecorded;
    std::string why;  // a sentence where there is no record
  };
  /// Runs the variant until it ends, and records it in `folder`. `reference`: the record that it is compared with.
  Result run(const VerifyVariant& variant, const std::filesystem::path& folder,
             const std::filesystem::path& reference) const;

 private:
  struct Checkpoint {
    std::string saved, resumed;  // folders; empty: none
  };
  Result start(int processes, const Settings& settings, const VerifyVariant& variant, const Checkpoint& checkpoint,
               const std::filesystem::path& folder, const std::filesystem::path& reference) const;
  std::vector<std::string> words_of(const Settings& settings, const Checkpoint& checkpoint,
                                    const std::filesystem::path& folder) const;
  void write_request(const Settings& settings, const VerifyVariant& variant, const Checkpoint& checkpoint,
                     const std::filesystem::path& folder, const std::filesystem::path& reference) const;

  const VerifyArguments& arguments_;
  std::uint64_t seed_;
};

}  // namespace capstan::cli
