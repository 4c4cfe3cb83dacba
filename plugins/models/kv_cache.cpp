#include "kv_cache.hpp"

#include <ATen/ops/empty.h>

#include <string>

namespace capstan::models {

void KeyValueCache::check(const at::Tensor& ids, std::int64_t max_positions, const TokenBounds& bounds) const {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.size(0) != sequences_ || ids.size(1) == 0) {
    throw sdk::Error("ids: got a " + std::string(c10::toString(ids.scalar_type())) + " tensor of shape " +
                     c10::str(ids.sizes()) + ". They must be int64 [" + std::to_string(sequences_) +
                     ", tokens] and not empty.");
  }
  if (capacity_ > max_positions) {
    throw sdk::Error(std::to_string(capacity_) + " tokens, and this model has " + std::to_string(max_positions) +
                     " positions. Shorten the sequences, or raise the model's parameter '" + bounds.sequence + "'.");
  }
  if (const std::int64_t tokens = tokens_ + ids.size(1); tokens > capacity_) {
    throw sdk::Error("ids: " + std::to_string(tokens) + " tokens with those before, and there is room for " +
                     std::to_string(capacity_) + ".");
  }
}

void KeyValueCache::extend(std::size_t layer, at::Tensor& keys, at::Tensor& values) {
  if (layer >= layers_.size()) layers_.resize(layer + 1);
  keys = extended(layers_[layer].keys, keys);
  values = extended(layers_[layer].values, values);
}

at::Tensor KeyValueCache::extended(at::Tensor& cached, const at::Tensor& fresh) const {
  const std::int64_t tokens = fresh.size(2);
  if (!cached.defined()) {
    cached = at::empty({fresh.size(0), fresh.size(1), capacity_, fresh.size(3)}, fresh.options());
  }
  cached.narrow(2, tokens_, tokens).copy_(fresh);
  return cached.narrow(2, 0, tokens_ + tokens);
}

}  // namespace capstan::models
