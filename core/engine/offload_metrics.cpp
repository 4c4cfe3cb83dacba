#include "core/engine/offload_metrics.hpp"

namespace capstan {

void add_offload_metrics(std::vector<Metric>& metrics, const OffloadTraffic& before, const OffloadTraffic& now,
                         std::int64_t samples) {
  if (now.transfers == 0) return;
  const auto megabytes = [](std::uint64_t from, std::uint64_t until) {
    return static_cast<double>(until - from) / (1 << 20);
  };
  metrics.push_back({"Train/Samples/offload_mb_read", megabytes(before.read_bytes, now.read_bytes), samples});
  metrics.push_back({"Train/Samples/offload_mb_written", megabytes(before.written_bytes, now.written_bytes), samples});
  metrics.push_back({"Train/Samples/offload_wait_ms", (now.wait_seconds - before.wait_seconds) * 1e3, samples});
}

}  // namespace capstan
