#include "core/config/typed/elasticity.hpp"

namespace capstan {

ElasticityConfig read_elasticity(const SectionValues& section) {
  ElasticityConfig to;
  section.read({{"enabled", &to.enabled},
                {"max_train_batch_size", &to.max_batch},
                {"micro_batch_sizes", &to.micro_batches},
                {"min_gpus", &to.min_devices},
                {"max_gpus", &to.max_devices},
                {"min_time", &to.min_time},
                {"prefer_larger_batch", &to.prefer_larger},
                {"version", &to.version},
                {"ignore_non_elastic_batch_info", &to.ignore_non_elastic_batch_info},
                {"num_gpus_per_node", &to.devices_per_node},
                {"model_parallel_size", &to.model_parallel}});
  return to;
}

}  // namespace capstan
