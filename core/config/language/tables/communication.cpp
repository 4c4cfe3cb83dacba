#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> communication() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"communication_data_type", "string", "", "fp16|bf16|fp32", kAnyCase | kSeveral, "001 002 DS",
     "Element type in which gradients are exchanged; follows the precision when absent.", kEngine},
    {"prescale_gradients", "boolean", "false", "", kSeveral, "000 001 002 DS",
     "Divide gradients by the world size before they are summed instead of after.", kEngine},
    {"gradient_predivide_factor", "number", "1.0", "> 0", kSeveral, "001 002 DS",
     "Divide gradients by this before the sum and multiply back after it.", kEngine},
    {"gradient_allreduce_op", "string", "\"mean\"", "mean|sum", kAnyCase | kSeveral, "page DS",
     "Average or plain sum of gradients over data-parallel ranks.", kEngine},
    {"sparse_gradients", "boolean", "false", "", 0, "000 001 002 DS",
     "Exchange the gradients of embeddings as index and value pairs; ZeRO stage 0 only.", kEngine},
    {"allgather_size", "integer", "500000000", "> 0", kNoEffect, "DS",
     "Elements per all-gather; read together with a boolean zero_optimization only.", "zero_optimization.allgather_bucket_size is the key that counts"},
    {"seq_parallel_communication_data_type", "string", "\"fp32\"", "fp16|bf16|fp32", kAnyCase, "DS",
     "Element type of exchanges between sequence-parallel ranks."},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
