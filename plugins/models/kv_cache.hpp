#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tokens.hpp"

namespace capstan::models {

/// Tokens that go through a model together: as many of each of some sequences.
struct DecodedTokens {
  std::vector<std::int64_t> rows;  // the sequences, by their places in the cache
  at::Tensor ids;                  // int64 [rows, tokens]

  std::int64_t count() const { return ids.size(1); }
  /// One token of each sequence, as in every step behind the prompts.
  bool are_single() const { return count() == 1; }
};

/// Keys and values of the sequences that a language model continues, one pair a layer. Each sequence has a length of
/// its own, and its results do not depend on the sequences beside it.
class KeyValueCache {
 public:
  /// Of so many sequences, which grow to at most `capacity` tokens each.
  KeyValueCache(std::int64_t sequences, std::int64_t capacity)
      : capacity_(capacity), tokens_(static_cast<std::size_t>(sequences)) {}

  /// The tokens of a call, int64 [sequences, tokens] with -1 behind the tokens of a shorter row, in the passes by which
  /// they are computed: single tokens of all rows at once, several tokens of one row at a time. Throws sdk::Error for
  /// ids of another form, or that find no room here or among the model's `max_positions`.
  std::vector<DecodedTokens> passes(const at::Tensor& ids, std::int64_t max_positions,
                                    const TokenBounds& bounds = {}) const;

  std::int64_t tokens(std::int64_t row) const { return tokens_[static_cast<std::size_t>(row)]; }  // so far
  std::int64_t capacity() const { return capacity_; }
  /// tokens() of these sequences.
  std::vector<std::int64_t> lengths(const DecodedTokens& tokens) const;
  /// The places of tokens in their sequences, int64 [rows, tokens].
  at::Tensor positions(const DecodedTokens& tokens) const;
  /// Called when all layers have taken in the tokens.
  void add(const DecodedTokens& tokens);

  struct Pair {
    at::Tensor keys, values;  // of a row: [1, heads, tokens, head_dim]
  };
  /// A layer's room for all sequences, [sequences, heads, capacity, head_dim] in the options of `fresh`, which is
  /// [rows, heads, ..., head_dim].
  Pair room(std::size_t layer, const at::Tensor& fresh);
  /// Puts a layer's keys and values of one row behind those of its earlier tokens. Returns all of them.
  Pair extend(std::size_t layer, std::int64_t row, const at::Tensor& keys, const at::Tensor& values);

 private:
  void check(const at::Tensor& ids, std::int64_t max_positions, const TokenBounds& bounds) const;
  at::Tensor extended(const at::Tensor& cached, std::int64_t row, const at::Tensor& fresh) const;

  std::int64_t capacity_;
  std::vector<std::int64_t> tokens_;  // of each sequence
  std::vector<Pair> layers_;          // undefined until the first tokens come
};

/// The logits of a call with the cache: those of the last token of each row that has tokens, [rows, vocabulary].
/// `last_logits` computes those of one pass.
template <class LastLogits>
at::Tensor decoded_logits(const at::Tensor& ids, KeyValueCache& cache, std::int64_t max_positions,
                          const TokenBounds& bounds, LastLogits last_logits) {
  std::vector<at::Tensor> logits;
  for (const DecodedTokens& tokens : cache.passes(ids, max_positions, bounds)) {
    logits.push_back(last_logits(tokens));
    cache.add(tokens);
  }
  return logits.size() == 1 ? logits.front() : at::cat(logits);
}

}  // namespace capstan::models
