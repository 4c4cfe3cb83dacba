#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "../packed_rows.hpp"
#include "config_json.hpp"
#include "shape.hpp"

namespace capstan::models {

/// Cosines and sines for the positions of a sequence: [samples or 1, 1, tokens, dimensions that turn].
struct RotaryTable {
  at::Tensor cos, sin;
};

/// Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), and the ways to stretch them over longer sequences
/// that a config.json names by rope_type: linear, dynamic (NTK), llama3, yarn (Peng et al. 2023, arXiv 2309.00071) and
/// longrope (Ding et al. 2024, arXiv 2402.13753), each as modeling_rope_utils.py of transformers computes it.
class Rotary {
 public:
  /// Of the layers that attend to all earlier tokens. Throws sdk::ConfigMistake for settings that transformers refuses.
  static Rotary of_full_layers(const ConfigJson& config, const DecoderShape& shape);
  /// Of the windowed layers, where these have frequencies of their own.
  static std::optional<Rotary> of_windowed_layers(const ConfigJson& config, const DecoderShape& shape);

  /// Whether the table of a position depends on the length of its sequence.
  bool depends_on_length() const { return long_frequencies_.defined(); }
  /// `positions`: int64 [samples or 1, tokens], some of a sequence of `length` tokens.
  RotaryTable table(const at::Tensor& positions, std::int64_t length, at::ScalarType dtype) const;
  /// The tables of documents that share rows: each is that of a sequence as long as the document.
  RotaryTable table(const PackedRows& rows, at::ScalarType dtype) const;

 private:
  struct Settings;
  explicit Rotary(const Settings& settings);
  /// `frequencies`: of each position, or for all of them.
  RotaryTable table_of(const at::Tensor& positions, const at::Tensor& frequencies, at::ScalarType dtype) const;

  // Neither parameters nor buffers: an engine that computes in 16 bits would round a buffer.
  at::Tensor frequencies_;       // radians a token, fp32 in host memory, [dimensions that turn / 2]
  at::Tensor long_frequencies_;  // of sequences above original_positions_; undefined: frequencies_
  std::int64_t original_positions_ = 0;
  double magnitude_ = 1;  // a factor on cosines and sines
};

/// Turns the first dimensions of each head, as many as the table has. `heads`: [samples, heads, tokens, head_dim].
at::Tensor turned(const at::Tensor& heads, const RotaryTable& table);

}  // namespace capstan::models
