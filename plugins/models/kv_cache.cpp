#include "kv_cache.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>

namespace capstan::models {
namespace {

constexpr std::int64_t kNoToken = -1;

/// How many tokens stand in front of the first -1 of each row, of ids in host memory.
std::vector<std::int64_t> counts_of(const at::Tensor& ids) {
  const at::Tensor host = ids.contiguous();
  const auto* id = host.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> counts;
  for (std::int64_t row = 0; row < host.size(0); ++row, id += host.size(1)) {
    const auto* const end = id + host.size(1);
    const auto* const behind = std::find(id, end, kNoToken);
    if (std::any_of(behind, end, [](std::int64_t one) { return one != kNoToken; })) {
      throw sdk::Error("ids: row " + std::to_string(row) + " has a token behind -1, which ends a row.");
    }
    counts.push_back(behind - id);
  }
  return counts;
}

}  // namespace

void KeyValueCache::check(const at::Tensor& ids, std::int64_t max_positions, const TokenBounds& bounds) const {
  const auto sequences = static_cast<std::int64_t>(tokens_.size());
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.size(0) != sequences || ids.size(1) == 0) {
    throw sdk::Error("ids: got a " + std::string(c10::toString(ids.scalar_type())) + " tensor of shape " +
                     c10::str(ids.sizes()) + ". They must be int64 [" + std::to_string(sequences) +
                     ", tokens] and not empty.");
  }
  if (capacity_ > max_positions) {
    throw sdk::Error(std::to_string(capacity_) + " tokens, and this model has " + std::to_string(max_positions) +
                     " positions. Shorten the sequences, or raise the model's parameter '" + bounds.sequence + "'.");
  }
}

std::vector<DecodedTokens> KeyValueCache::passes(const at::Tensor& ids, std::int64_t max_positions,
                                                 const TokenBounds& bounds) const {
  check(ids, max_positions, bounds);
  const std::vector<std::int64_t> counts = counts_of(ids.to(at::kCPU));
  DecodedTokens all;
  std::int64_t most = 0;
  for (std::size_t row = 0; row < counts.size(); ++row) {
    if (const std::int64_t tokens = tokens_[row] + counts[row]; tokens > capacity_) {
      throw sdk::Error("ids: " + std::to_string(tokens) + " tokens with those before, and there is room for " +
                       std::to_string(capacity_) + ".");
    }
    if (counts[row] > 0) all.rows.push_back(static_cast<std::int64_t>(row));
    most = std::max(most, counts[row]);
  }
  if (all.rows.empty()) throw sdk::Error("ids: has -1 in place of every token.");
  if (most == 1) {
    const at::Tensor first = ids.narrow(1, 0, 1);
    all.ids = all.rows.size() == counts.size()
                  ? first
                  : first.index_select(0, at::tensor(all.rows, at::kLong).to(ids.device()));
    return {all};
  }
  std::vector<DecodedTokens> passes;
  for (const std::int64_t row : all.rows) {
    passes.push_back({{row}, ids.narrow(0, row, 1).narrow(1, 0, counts[static_cast<std::size_t>(row)])});
  }
  return passes;
}

std::vector<std::int64_t> KeyValueCache::lengths(const DecodedTokens& tokens) const {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t row : tokens.rows) lengths.push_back(this->tokens(row));
  return lengths;
}

at::Tensor KeyValueCache::positions(const DecodedTokens& tokens) const {
  const at::Tensor host = at::tensor(lengths(tokens), at::kLong).unsqueeze(1);
  const at::Tensor begin = host.to(tokens.ids.device());
  return tokens.are_single() ? begin : begin + at::arange(tokens.count(), tokens.ids.options());
}

void KeyValueCache::add(const DecodedTokens& tokens) {
  for (const std::int64_t row : tokens.rows) tokens_[static_cast<std::size_t>(row)] += tokens.count();
}

KeyValueCache::Pair KeyValueCache::extend(std::size_t layer, std::int64_t row, const at::Tensor& keys,
                                          const at::Tensor& values) {
  const Pair all = room(layer, keys);
  return {extended(all.keys, row, keys), extended(all.values, row, values)};
}

KeyValueCache::Pair KeyValueCache::room(std::size_t layer, const at::Tensor& fresh) {
  if (layer >= layers_.size()) layers_.resize(layer + 1);
  Pair& pair = layers_[layer];
  if (!pair.keys.defined()) {
    const auto sequences = static_cast<std::int64_t>(tokens_.size());
    for (at::Tensor* one : {&pair.keys, &pair.values}) {
      *one = at::empty({sequences, fresh.size(1), capacity_, fresh.size(-1)}, fresh.options());
    }
  }
  return pair;
}

at::Tensor KeyValueCache::extended(const at::Tensor& cached, std::int64_t row, const at::Tensor& fresh) const {
  const std::int64_t before = tokens(row), count = fresh.size(2);
  const at::Tensor of_row = tokens_.size() == 1 ? cached : cached.narrow(0, row, 1);
  of_row.narrow(2, before, count).copy_(fresh);
  return of_row.narrow(2, 0, before + count);
}

}  // namespace capstan::models
