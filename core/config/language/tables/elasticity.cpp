#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> elasticity() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"elasticity.enabled", "boolean", "false", "", 0, "002 page DS",
     "Let the batch be chosen from a set that fits many world sizes.", "the choice of the batch, and capstan elastic"},
    {"elasticity.max_train_batch_size", "integer", "", "> 0", 0, "002 page DS",
     "Largest acceptable global batch.", "the choice of the batch, and capstan elastic"},
    {"elasticity.micro_batch_sizes", "integer[]", "", "> 0", 0, "002 DS",
     "Acceptable micro-batches.", "the choice of the batch, and capstan elastic"},
    {"elasticity.min_gpus", "integer", "1", ">= 1", 0, "002 DS",
     "Smallest world size searched.", "the choice of the batch, and capstan elastic"},
    {"elasticity.max_gpus", "integer", "10000", ">= 1", 0, "002 DS",
     "Largest world size searched.", "the choice of the batch, and capstan elastic"},
    {"elasticity.min_time", "integer", "0", ">= 0", 0, "002 DS",
     "Least minutes between changes of the number of processes that nothing forces.", "capstan launch --elastic"},
    {"elasticity.prefer_larger_batch", "boolean", "true", "", 0, "DS",
     "Take the larger batch on ties; documented as prefer_large_batch, which is accepted too.", "the choice of the batch, and capstan elastic"},
    {"elasticity.version", "number", "0.2", "", 0, "002 DS",
     "Version of the algorithm: 0.1 or 0.2.", "the choice of the batch, and capstan elastic"},
    {"elasticity.ignore_non_elastic_batch_info", "boolean", "false", "", 0, "002 DS",
     "Override the three batch keys instead of refusing them.", "the choice of the batch, and capstan elastic"},
    {"elasticity.num_gpus_per_node", "integer", "1", ">= 1", 0, "002 DS",
     "Devices per node, for version 0.2.", "the choice of the batch, and capstan elastic"},
    {"elasticity.model_parallel_size", "integer", "1", ">= 1", 0, "002 DS",
     "Model-parallel degree; above 1 only in version 0.2.", "the choice of the batch, and capstan elastic"},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
