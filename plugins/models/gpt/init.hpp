#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <string>

namespace capstan::models {

/// What torch::nn::Module::named_parameters() gives. Without modules this header takes a sixth of the time to read.
using NamedParameters = torch::OrderedDict<std::string, at::Tensor>;

/// GPT-2's initial weights, from torch's generator: normal with deviation 0.02, divided by sqrt(2 * layers) for the
/// projections that end a residual branch; biases 0, LayerNorm weights 1.
void initialize_normal(const NamedParameters& parameters, std::int64_t layers);

/// Initial weights that any program can repeat: element i of parameter `name` is splitmix64 number i of the stream that
/// fnv1a64(name) xor seed * 0x9E3779B97F4A7C15 starts, mapped to [-bound, bound); bound is 0.04, divided by
/// sqrt(2 * layers) for the projections; biases 0, LayerNorm weights 1.
void initialize_formula(const NamedParameters& parameters, std::int64_t layers, std::uint64_t seed);

}  // namespace capstan::models
