#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>

namespace capstan {

/// While it lives, capstan::linear_cross_entropy on this thread, and on those that LibTorch starts for its backward,
/// takes chunks of `bytes` of logits: capstan.run.loss_chunk.
class LossChunkScope {
 public:
  explicit LossChunkScope(std::int64_t bytes);
  LossChunkScope(const LossChunkScope&) = delete;

 private:
  std::optional<c10::DebugInfoGuard> bytes_;
};

/// The bytes of the innermost scope; the configuration's default outside of all. 0: all logits at once.
std::int64_t loss_chunk_bytes();

}  // namespace capstan
