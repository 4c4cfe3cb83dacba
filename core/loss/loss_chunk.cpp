#include "core/loss/loss_chunk.hpp"

#include <memory>

#include "core/config/typed/config.hpp"

namespace capstan {
namespace {

// LibTorch hands information of this kind to the threads that it starts for a backward, and reads none of it.
constexpr auto kChunkKind = c10::DebugInfoKind::PRODUCER_INFO;

struct ChunkBytes final : c10::DebugInfoBase {
  explicit ChunkBytes(std::int64_t given) : bytes(given) {}
  std::int64_t bytes;
};

}  // namespace

std::int64_t loss_chunk_bytes() {
  const auto* given = static_cast<const ChunkBytes*>(c10::ThreadLocalDebugInfo::get(kChunkKind));
  return given == nullptr ? RunConfig::kLossChunk : given->bytes;
}

LossChunkScope::LossChunkScope(std::int64_t bytes) {
  if (bytes != loss_chunk_bytes()) bytes_.emplace(kChunkKind, std::make_shared<ChunkBytes>(bytes));
}

}  // namespace capstan
