#include "core/config/typed/checkpoint.hpp"

namespace capstan {
namespace {

std::optional<CheckpointWriterConfig> read_writer(const SectionValues& section) {
  CheckpointWriterConfig to;
  section.read({{"decoupled", &to.decoupled}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace

CheckpointConfig read_checkpoint_config(const SectionValues& section) {
  CheckpointConfig to;
  section.read({{"tag_validation", &to.tag_validation}, {"use_node_local_storage", &to.use_node_local_storage}});
  to.writer = read_writer(section.section("writer"));
  return to;
}

std::optional<DatastatesConfig> read_datastates(const SectionValues& section) {
  DatastatesConfig to;
  section.read({{"host_cache_size", &to.host_cache_size}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace capstan
