#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> aio() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"aio.block_size", "integer", "1048576", "> 0", 0, "001 002 DS",
     "Bytes of one request, a multiple of 512."},
    {"aio.queue_depth", "integer", "", "1..32768", 0, "001 002 DS",
     "Most requests in flight; absent: as many as a tile has."},
    {"aio.intra_op_parallelism", "integer", "1", "1..1024", 0, "DS",
     "Threads that read and write, where threads do; documented as thread_count, which is accepted too."},
    {"aio.single_submit", "boolean", "false", "", 0, "001 002 DS",
     "Submit requests one by one."},
    {"aio.overlap_events", "boolean", "true", "", 0, "001 002 DS",
     "Submit without waiting for completions."},
    {"aio.use_gds", "boolean", "false", "", 0, "DS",
     "Move data between storage and device directly; CUDA only."},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
