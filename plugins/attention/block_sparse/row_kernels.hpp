#pragma once

#include <cstdint>

#include "capstan/sdk/tensor.hpp"

// What is done to the rows of tiles between products. The instructions are chosen when the program runs. [any thread]
namespace capstan::attention {

/// Scores of some queries (rows) and keys (columns), `stride` floats a row.
struct Tile {
  float* values = nullptr;
  std::int64_t stride = 0, rows = 0, keys = 0;
  const std::int64_t* limits =
      nullptr;  // of each row: the keys that it has, the first ones; what is behind is left out
};

/// The online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3): turns the scores into
/// exp(score - maximum of all panels so far), 0 where they are left out, and takes them into `maxima` and `sums`, one a
/// row. `factors`: what the rows of earlier panels are to be multiplied with.
void take_into_softmax(const Tile& scores, float* maxima, float* sums, float* factors);
/// Turns the scores into exp(score - log_sum_exp).
void probabilities(const Tile& scores, const float* log_sum_exp);
/// gradients = p * (gradients - deltas), one of `deltas` a row: the gradient of scores from that of probabilities.
void score_gradients(const Tile& p, float* gradients, const float* deltas);

/// rows * width floats; rows whose factor is 1 are left alone.
void scale_rows(float* values, std::int64_t rows, std::int64_t width, const float* factors);
/// out[row] = sum of a * b along the row.
void dot_rows(const float* a, const float* b, std::int64_t rows, std::int64_t width, float* out);
/// Adds contiguous rows to rows that are `stride` floats apart.
void add_rows(float* to, std::int64_t stride, const float* from, std::int64_t rows, std::int64_t width);

/// Rows of any of the three dtypes, `stride` elements apart, to and from contiguous floats. `factors`: what each row is
/// multiplied with on its way out.
void load_rows(const void* from, sdk::Dtype dtype, std::int64_t stride, std::int64_t rows, std::int64_t width,
               float scale, float* to);
void store_rows(const float* from, std::int64_t rows, std::int64_t width, const float* factors, void* to,
                sdk::Dtype dtype, std::int64_t stride);

}  // namespace capstan::attention
