#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace capstan {

/// What verify_checkpoint() has looked at.
struct VerifiedCheckpoint {
  std::string writer;  // "Capstan", "DeepSpeed 0.19.8", "transformers"
  std::int64_t files = 0, tensors = 0;
  std::uint64_t bytes = 0;  // of the files
};

/// Reads all of a checkpoint and compares it with the checksums that it has: XXH3 of Capstan's, CRC-32 of every record
/// of torch.save's files; that files and tensors fit together; a folder checkpoint-<N> of transformers with all files
/// of these kinds in it. `tag`: the name of a checkpoint's folder in `dir`. Throws RuntimeFault naming the file and
/// what is wrong.
VerifiedCheckpoint verify_checkpoint(const std::filesystem::path& dir, const std::string& tag);

}  // namespace capstan
