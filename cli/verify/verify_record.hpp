#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace capstan::cli {

/// The files by which a run of a verification tells what it did, in its own folder.
struct RunRecord {
  /// The run as JSON: "parameters", trained ones in the model's order; "first_step"; for each step "losses" (the mean)
  /// and "samples" (sorted digests of the rows that the ranks saw). Where a run tells: "draws", the sources of random
  /// numbers that forward drew from ("LibTorch", "Python", "NumPy"); "batch_norms", paths of modules;
  /// "changed_inputs", names of tensors that forward changed in place; for each step "token_losses", the mean over the
  /// labels that count.
  static std::filesystem::path facts(const std::filesystem::path& folder) { return folder / "run.json"; }
  /// Whole gradients before the update of a step, counted from 0: the mean over ranks and micro-batches, float32.
  static std::filesystem::path gradients(const std::filesystem::path& folder, std::int64_t step) {
    return folder / ("gradients" + std::to_string(step) + ".safetensors");
  }
  /// Whole float32 values before the first step and after the last.
  static std::filesystem::path first_weights(const std::filesystem::path& folder) {
    return folder / "first_weights.safetensors";
  }
  static std::filesystem::path weights(const std::filesystem::path& folder) { return folder / "weights.safetensors"; }
  /// Whole states of the optimizer after the last step, float32, by "PARAMETER/STATE"; missing where a peer has others.
  static std::filesystem::path states(const std::filesystem::path& folder) { return folder / "states.safetensors"; }
};

/// Trains as `capstan train` does, until step `arguments.until`, and records it in `arguments.record`. One of the
/// processes of a run that `capstan verify` starts.
int record_run(const VerifyArguments& arguments);

}  // namespace capstan::cli
