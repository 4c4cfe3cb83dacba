#pragma once

#include <cstdint>
#include <string>

#include "core/model/batch.hpp"
#include "core/model/model.hpp"
#include "core/text/json.hpp"

namespace capstan::parity {

/// The models of the runs that record features: "gpt-split", gpt with one linear layer for each of q, k and v, and
/// "conv", three convolutions and a linear layer. Their weights come from the formula of the recordings.
bool is_feature_model(const Json& recorded);
Model feature_model(const Json& recorded);
/// Values by the formula of the recordings, times a bound.
at::Tensor formula_values(const std::string& name, at::IntArrayRef shape, std::uint64_t seed, double bound);

/// Rows [first, first + rows) of the samples that "conv" was trained on: windows of 257 bytes at multiples of 256.
Batch conv_batch(const std::string& corpus, std::int64_t first, std::int64_t rows);

}  // namespace capstan::parity
