#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan {

/// How a token is chosen from logits, in the order of Hugging Face's transformers: temperature, then top-k, then top-p.
struct TokenSampling {
  double temperature = 0;  // divides the logits; 0: the likeliest token, whatever the other settings are
  std::int64_t top_k = 0;  // only the k likeliest tokens, and those as likely as the last of them; 0: all
  double top_p = 1;        // only the likeliest tokens (Holtzman et al. 2020, arXiv 1904.09751) whose sum reaches p
  std::uint64_t seed = 1;
};

/// The probability of each token, of logits [vocab_size] in host memory, for a temperature above 0.
std::vector<double> token_probabilities(const at::Tensor& logits, const TokenSampling& sampling);

/// The token of sequence `sequence` at `position`, from logits [vocab_size] in host memory: a function of its
/// arguments.
std::int64_t chosen_token(const at::Tensor& logits, const TokenSampling& sampling, std::uint64_t sequence,
                          std::uint32_t position);

}  // namespace capstan
