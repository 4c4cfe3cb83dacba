#pragma once

#include <cstdint>

namespace capstan {

/// The attention of one head of one new token to the tokens before it and to itself, in float32.
struct HeadOfToken {
  const float* query;  // [width], turned
  const float* keys;   // [tokens, width], of those that it sees
  const float* values;
  std::int64_t tokens, width;
  double scale;
  float* weights;  // [tokens], room
  float* out;      // [width]
};

/// Mixes the values by softmax(scale * query keys^T). Any thread.
void attend_to_tokens(const HeadOfToken& head);

/// weight * x / sqrt(mean(x^2) + eps) of each row of [rows, width]. Any thread.
void rms_norm_rows(const float* x, const float* weight, double eps, std::int64_t rows, std::int64_t width, float* out);

}  // namespace capstan
