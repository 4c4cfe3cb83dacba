#include "core/config/typed/attention.hpp"

namespace capstan {

ActivationCheckpointingConfig read_activation_checkpointing(const SectionValues& section) {
  ActivationCheckpointingConfig to;
  section.read({{"partition_activations", &to.partition_activations},
                {"cpu_checkpointing", &to.cpu_checkpointing},
                {"contiguous_memory_optimization", &to.contiguous_memory_optimization},
                {"number_checkpoints", &to.number_checkpoints},
                {"synchronize_checkpoint_boundary", &to.synchronize_checkpoint_boundary},
                {"profile", &to.profile}});
  return to;
}

std::optional<SparseAttentionConfig> read_sparse_attention(const SectionValues& section) {
  SparseAttentionConfig to;
  section.read({{"mode", &to.mode},
                {"block", &to.block},
                {"different_layout_per_head", &to.different_layout_per_head},
                {"num_local_blocks", &to.num_local_blocks},
                {"num_global_blocks", &to.num_global_blocks},
                {"attention", &to.attention},
                {"horizontal_global_attention", &to.horizontal_global_attention},
                {"num_different_global_patterns", &to.num_different_global_patterns},
                {"num_random_blocks", &to.num_random_blocks},
                {"local_window_blocks", &to.local_window_blocks},
                {"global_block_indices", &to.global_block_indices},
                {"global_block_end_indices", &to.global_block_end_indices},
                {"num_sliding_window_blocks", &to.num_sliding_window_blocks}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace capstan
