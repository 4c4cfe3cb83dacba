#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tokens.hpp"

namespace capstan::models {

/// Keys and values of the sequences that a language model continues, one pair a layer.
class KeyValueCache {
 public:
  /// Of so many sequences, which grow together to at most `capacity` tokens each.
  KeyValueCache(std::int64_t sequences, std::int64_t capacity) : sequences_(sequences), capacity_(capacity) {}

  /// Throws sdk::Error unless `ids` are int64 [sequences, tokens] that find room here and among the model's
  /// `max_positions`.
  void check(const at::Tensor& ids, std::int64_t max_positions, const TokenBounds& bounds = {}) const;
  std::int64_t tokens() const { return tokens_; }  // of each sequence, so far
  std::int64_t capacity() const { return capacity_; }
  /// Called when all layers have taken in `count` tokens.
  void add_tokens(std::int64_t count) { tokens_ += count; }

  /// Puts a layer's `keys` and `values`, [sequences, heads, tokens, head_dim], behind those of earlier tokens, and
  /// leaves all of them there.
  void extend(std::size_t layer, at::Tensor& keys, at::Tensor& values);

 private:
  struct Layer {
    at::Tensor keys, values;  // [sequences, heads, capacity, head_dim]; undefined until the first tokens come
  };

  at::Tensor extended(at::Tensor& cached, const at::Tensor& fresh) const;

  std::int64_t sequences_, capacity_, tokens_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace capstan::models
