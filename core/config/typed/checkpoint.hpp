#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// checkpoint.writer
struct CheckpointWriterConfig {
  std::string type = "FAST";                 // MOCK, PYTHON, FAST
  std::int64_t io_buffer_size = 67'108'864;  // bytes
  bool io_buffer_double = true;
  std::int64_t io_multiplier = 1;
  bool show_statistics = false;
  std::optional<std::string> data_parallel;  // REPLICA, SOCKET, MACHINE
  bool decoupled = false;
  bool operator==(const CheckpointWriterConfig&) const = default;
};

struct CheckpointConfig {
  std::string tag_validation = "Warn";  // Ignore, Warn, Fail
  bool use_node_local_storage = false;
  bool parallel_write_pipeline_stage = false;
  bool checkpoint_serialization = true;
  std::optional<CheckpointWriterConfig> writer;
  bool operator==(const CheckpointConfig&) const = default;
};

struct NebulaConfig {
  bool enabled = false;
  std::string persistent_storage_path;
  std::int64_t persistent_time_interval = 100, num_of_version_in_retention = 2;
  bool enable_nebula_load = true;
  std::string nebula_load_path;
  bool operator==(const NebulaConfig&) const = default;
};

/// datastates_ckpt: its presence switches it on.
struct DatastatesConfig {
  std::optional<double> host_cache_size;  // GB
  bool operator==(const DatastatesConfig&) const = default;
};

CheckpointConfig read_checkpoint_config(const SectionValues& section);
NebulaConfig read_nebula(const SectionValues& section);
std::optional<DatastatesConfig> read_datastates(const SectionValues& section);

}  // namespace capstan
