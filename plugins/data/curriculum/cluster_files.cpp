#include "plugins/data/curriculum/cluster_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace capstan::curriculum {
namespace {

constexpr std::int64_t kChunk = 1 << 16;

/// The members of a cluster in their order, some at a time.
template <class Take>
void each_chunk(const Cluster& cluster, Take&& take) {
  std::vector<std::int64_t> chunk;
  for (std::int64_t place = 0; place < cluster.size(); place += kChunk) {
    chunk.resize(static_cast<std::size_t>(std::min(kChunk, cluster.size() - place)));
    if (cluster.index) {
      cluster.index->read(cluster.begin + place, static_cast<std::int64_t>(chunk.size()), chunk.data());
    } else {
      for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = cluster.member(place + static_cast<std::int64_t>(i));
    }
    take(chunk);
  }
}

/// Under a name of this process's own first: another run may write to the folder as well.
void write_rows(const std::string& name, const Cluster& cluster) {
  static std::atomic<int> count;
  const std::string aside = name + "." + std::to_string(::getpid()) + "." + std::to_string(++count);
  std::int64_t most = 0;
  each_chunk(cluster, [&](const std::vector<std::int64_t>& chunk) {
    most = std::max(most, *std::max_element(chunk.begin(), chunk.end()));
  });
  sdk::IndexedWriter writer(aside, sdk::type_for(0, most));
  each_chunk(cluster, [&](const std::vector<std::int64_t>& chunk) { writer.append(chunk); });
  writer.end_row();
  writer.end_document();
  writer.finish();
  for (const char* ending : {".bin", ".idx"}) std::filesystem::rename(aside + ending, name + ending);
}

}  // namespace

void ClusterFiles::write(const std::string& name, Cluster cluster) {
  wait();
  fault_ = std::async(std::launch::async, [path = (folder_ / name).string(), cluster = std::move(cluster)] {
    try {
      write_rows(path, cluster);
      return std::string();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  });
}

void ClusterFiles::wait() noexcept {
  if (!fault_.valid()) return;
  try {
    const std::string fault = fault_.get();
    if (!fault.empty()) host_.warning("a cluster was not written, which training does without: " + fault);
  } catch (...) {
    // There is nobody left to tell.
  }
}

}  // namespace capstan::curriculum
