#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> checkpoint() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"checkpoint.tag_validation", "string", "\"Warn\"", "Ignore|Warn|Fail", kAnyCase | kSeveral, "002 DS",
     "What to do when ranks save under different tags.", kEngine},
    {"checkpoint.load_universal", "boolean", "false", "", kNoEffect, "002 page DS",
     "Load a checkpoint of DeepSpeed's universal form.", "every checkpoint loads at any world size and stage"},
    {"checkpoint.use_node_local_storage", "boolean", "false", "", kSeveral, "002 DS",
     "Each node writes its own part, so that no shared file system is needed.", kEngine},
    {"checkpoint.parallel_write.pipeline_stage", "boolean", "false", "", kExactType | kNoEffect, "002 page DS",
     "Pipeline ranks share the writing.", "there are no pipeline ranks"},
    {"checkpoint.checkpoint_serialization", "boolean", "true", "", 0, "DS",
     "Serialise with the framework's own format."},
    {"checkpoint.writer", "object", "", "", kOptional, "DS",
     "How checkpoint files are written.", "the engine, which writes checkpoints while it trains"},
    {"checkpoint.writer.type", "string", "\"FAST\"", "MOCK|PYTHON|FAST", kAnyCase, "DS",
     "Implementation of the writer."},
    {"checkpoint.writer.io_buffer_size", "integer", "67108864", "> 0", 0, "DS",
     "Bytes of the write buffer."},
    {"checkpoint.writer.io_buffer_double", "boolean", "true", "", 0, "DS",
     "Two buffers."},
    {"checkpoint.writer.io_multiplier", "integer", "1", "> 0", 0, "DS",
     "Repeat writes, for measurements."},
    {"checkpoint.writer.show_statistics", "boolean", "false", "", 0, "DS",
     "Report throughput."},
    {"checkpoint.writer.data_parallel", "string", "", "REPLICA|SOCKET|MACHINE", kAnyCase, "DS",
     "Who shares the write."},
    {"checkpoint.writer.decoupled", "boolean", "false", "", 0, "DS",
     "Write while training goes on, from a thread of its own.", "the engine, which writes checkpoints while it trains"},
    {"nebula.enabled", "boolean", "false", "", 0, "DS",
     "Asynchronous checkpoints in an external service."},
    {"nebula.persistent_storage_path", "path", "", "", 0, "DS",
     "Target."},
    {"nebula.persistent_time_interval", "integer", "100", "> 0", 0, "DS",
     "Interval."},
    {"nebula.num_of_version_in_retention", "integer", "2", "> 0", 0, "DS",
     "Versions kept in memory."},
    {"nebula.enable_nebula_load", "boolean", "true", "", 0, "DS",
     "Load through it too."},
    {"nebula.nebula_load_path", "path", "", "", 0, "DS",
     "Source."},
    {"datastates_ckpt", "object", "", "", kOptional, "DS",
     "Asynchronous checkpoints through an external engine; the presence of the section switches them on.", "the engine, which writes checkpoints while it trains"},
    {"datastates_ckpt.host_cache_size", "number", "", "> 0", 0, "DS",
     "Size of the cache on the host in GB.", "the engine, which writes checkpoints while it trains"},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
