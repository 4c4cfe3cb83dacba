#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct ActivationCheckpointingConfig {
  bool partition_activations = false;
  bool cpu_checkpointing = false;
  bool contiguous_memory_optimization = false;
  std::optional<std::int64_t> number_checkpoints;
  bool synchronize_checkpoint_boundary = false;
  bool profile = false;
  bool operator==(const ActivationCheckpointingConfig&) const = default;
};

/// sparse_attention: all modes in one; each reads the keys that the reference names for it.
struct SparseAttentionConfig {
  std::string mode = "fixed";  // dense, fixed, variable, bigbird, bslongformer
  std::int64_t block = 16;
  bool different_layout_per_head = false;
  std::int64_t num_local_blocks = 4, num_global_blocks = 1;
  std::string attention = "bidirectional";  // unidirectional, bidirectional
  bool horizontal_global_attention = false;
  std::int64_t num_different_global_patterns = 1;
  std::int64_t num_random_blocks = 0;
  std::vector<std::int64_t> local_window_blocks = {4}, global_block_indices = {0};
  std::optional<std::vector<std::int64_t>> global_block_end_indices;
  std::int64_t num_sliding_window_blocks = 3;
  bool operator==(const SparseAttentionConfig&) const = default;
};

ActivationCheckpointingConfig read_activation_checkpointing(const SectionValues& section);
std::optional<SparseAttentionConfig> read_sparse_attention(const SectionValues& section);

}  // namespace capstan
