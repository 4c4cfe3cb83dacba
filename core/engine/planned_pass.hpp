#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/model/model.hpp"
#include "core/registry/plugin_index.hpp"

namespace capstan {

/// A call of attention: [batch, heads, tokens, d].
struct PlannedAttention {
  std::int64_t batch = 1, heads = 1, tokens = 0;
  bool causal = false;
};

/// One micro-batch's forward and backward of a model without values, as its operators are seen.
struct PlannedPass {
  std::string unknown;          // why there was none, a sentence; empty: the rest is known
  std::int64_t kept_bytes = 0;  // what forward keeps for backward: tensors that are neither the model's nor the batch's
  std::int64_t peak_bytes = 0;  // the most of these at one time, gradients of parameters not counted
  std::vector<std::size_t>
      uses;  // parameters in the order in which operators use them, by their places in the model's list
  std::vector<PlannedAttention> attention;  // the forward's self-attention, without dropout
};

/// `model` was built with shapes only, and is left with parameters of the compute type. `recompute`: with the regions
/// of the section activation_checkpointing; else without. Attention is taken to be LibTorch's flash kernel, which keeps
/// its inputs, its output and a number a row.
PlannedPass follow_pass(Model& model, const Config& config, const PluginIndex& plugins, bool recompute);

}  // namespace capstan
