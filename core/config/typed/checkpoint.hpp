#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// checkpoint.writer
struct CheckpointWriterConfig {
  bool decoupled = false;
  bool operator==(const CheckpointWriterConfig&) const = default;
};

struct CheckpointConfig {
  std::string tag_validation = "Warn";  // Ignore, Warn, Fail
  bool use_node_local_storage = false;
  std::optional<CheckpointWriterConfig> writer;
  bool operator==(const CheckpointConfig&) const = default;
};

/// datastates_ckpt: its presence switches it on.
struct DatastatesConfig {
  std::optional<double> host_cache_size;  // GB
  bool operator==(const DatastatesConfig&) const = default;
};

CheckpointConfig read_checkpoint_config(const SectionValues& section);
std::optional<DatastatesConfig> read_datastates(const SectionValues& section);

}  // namespace capstan
