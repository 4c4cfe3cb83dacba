#include "core/config/typed/checkpoint.hpp"

namespace capstan {
namespace {

std::optional<CheckpointWriterConfig> read_writer(const SectionValues& section) {
  CheckpointWriterConfig to;
  section.read({{"type", &to.type},
                {"io_buffer_size", &to.io_buffer_size},
                {"io_buffer_double", &to.io_buffer_double},
                {"io_multiplier", &to.io_multiplier},
                {"show_statistics", &to.show_statistics},
                {"data_parallel", &to.data_parallel},
                {"decoupled", &to.decoupled}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace

CheckpointConfig read_checkpoint_config(const SectionValues& section) {
  CheckpointConfig to;
  section.read({{"tag_validation", &to.tag_validation},
                {"use_node_local_storage", &to.use_node_local_storage},
                {"checkpoint_serialization", &to.checkpoint_serialization}});
  section.section("parallel_write").read({{"pipeline_stage", &to.parallel_write_pipeline_stage}});
  to.writer = read_writer(section.section("writer"));
  return to;
}

NebulaConfig read_nebula(const SectionValues& section) {
  NebulaConfig to;
  section.read({{"enabled", &to.enabled},
                {"persistent_storage_path", &to.persistent_storage_path},
                {"persistent_time_interval", &to.persistent_time_interval},
                {"num_of_version_in_retention", &to.num_of_version_in_retention},
                {"enable_nebula_load", &to.enable_nebula_load},
                {"nebula_load_path", &to.nebula_load_path}});
  return to;
}

std::optional<DatastatesConfig> read_datastates(const SectionValues& section) {
  DatastatesConfig to;
  section.read({{"host_cache_size", &to.host_cache_size}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace capstan
