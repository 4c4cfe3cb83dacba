#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/model/model.hpp"

namespace capstan {

/// Continues sequences token by token with a model that it must not outlive. [engine]
class Decoding {
 public:
  /// Of so many sequences, which grow together to at most `capacity` tokens each. Puts the model in evaluation mode.
  /// Throws PluginError with the model's own text.
  Decoding(const DecodeFunctions& functions, std::int64_t sequences, std::int64_t capacity);
  ~Decoding();
  Decoding(const Decoding&) = delete;

  /// Takes in `ids`, int64 [sequences, tokens], which follow the tokens of earlier calls. Returns the logits of the
  /// token behind them, [sequences, vocab_size]. Throws PluginError with the model's own text.
  at::Tensor logits(const at::Tensor& ids) { return logits_of_rows(ids, sequences_); }

  /// For a model that takes rows of different lengths: those of `ids` end with -1 in the place of tokens, and `rows`
  /// of them have any. Returns the logits of these, [rows, vocab_size]. Throws PluginError with the model's own text.
  at::Tensor logits_of_rows(const at::Tensor& ids, std::int64_t rows);

  /// Whether a model is one.
  static bool takes_short_rows(const Model& model);

 private:
  PluginFunction function(const char* name) const;

  DecodeFunctions functions_;
  std::int64_t sequences_;
  void* cache_ = nullptr;
};

}  // namespace capstan
