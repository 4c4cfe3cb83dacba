#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"

namespace capstan::models {

struct GptShape {
  std::int64_t layers, d, heads, seq, vocab;
  bool tied_head = false;                    // the head's weight is the token embedding's
  std::vector<std::int64_t> ff, kept_heads;  // one a block: the MLP's width, the heads that it has of `heads`

  /// The shape that `size` names, with the parameters that are given in its place. Throws sdk::Error.
  static GptShape from(const sdk::Params& params);
  std::int64_t head_size() const { return d / heads; }
  /// Why formats that know one width of all blocks, and all heads, cannot hold it; empty: they can.
  std::string not_held_by(const std::string& format) const;
};

/// How transformers' GPT-2 calls and lays out the weights of a shape: the "hf" of describe(), as JSON.
std::string hf_names(const GptShape& shape);
/// How its OPT does, whose linear layers are torch.nn.Linear: the "hf_linear" of describe().
std::string opt_names(const GptShape& shape);
/// How llama.cpp's gpt2 does: the "gguf" of describe().
std::string gguf_names(const GptShape& shape);

}  // namespace capstan::models
