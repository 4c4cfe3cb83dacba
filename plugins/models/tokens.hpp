#pragma once

#include <cstdint>

#include "capstan/sdk/model.hpp"

namespace capstan::models {

/// What a language model reads from a batch: int64 [batch, time], labels being the tokens that follow.
struct Tokens {
  at::Tensor inputs, labels;
};

/// How messages name the parameters of a model that bound its tokens.
struct TokenBounds {
  const char *sequence = "seq", *vocabulary = "vocab";
};

/// Takes "input_ids" alone from the batch, as read_tokens does.
at::Tensor read_inputs(const sdk::BatchView& batch, std::int64_t sequence_length, const TokenBounds& bounds = {});

/// Takes "input_ids" and "labels" from the batch, cut to "curriculum_seqlen" where that is given. Throws sdk::Error
/// naming the numbers when they are not two int64 matrices of one shape, or longer than `sequence_length`. A label of
/// -100 is not counted.
Tokens read_tokens(const sdk::BatchView& batch, std::int64_t sequence_length, const TokenBounds& bounds = {});

/// Looks at a batch that is still in host memory: throws what read_tokens throws, or without labels what
/// read_inputs does, and sdk::Error naming an id that is outside of the vocabulary.
void check_tokens(const sdk::BatchView& batch, std::int64_t sequence_length, std::int64_t vocabulary,
                  const TokenBounds& bounds = {});

/// Mean cross-entropy over all positions, in fp32 whatever the logits are. `logits` is [batch, time, vocabulary].
at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace capstan::models
