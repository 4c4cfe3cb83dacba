#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/zero/coded_parts.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// What this rank updates of a parameter whose values are compressed on their way from the masters to the compute copy.
struct CompressedPart {
  std::size_t entry = 0;
  std::string name;
  std::vector<std::int64_t> shape;   // of the whole parameter
  Range range;                       // the elements that the tensors hold
  std::vector<Range> of_ranks;       // what each rank updates, in rank order; empty: every rank all of it
  at::Tensor master;                 // float32, one dimension, contiguous
  at::Tensor compute;                // the compute copy's elements, one dimension, contiguous
  bool wants_scales = false;         // the part travels to other ranks, and may do so as codes
  std::optional<PartScales> scales;  // filled with the compute copy, where its values have codes
  at::Tensor gradient;  // of a step, while compressions look at it: float32, one dimension; undefined: none
};

/// What this rank updates of a trained state of a compression, which is a parameter of its own.
struct TrainedPart {
  std::size_t entry = 0;
  std::string name;
  std::int64_t numel = 0;       // of the whole
  Range range;                  // the elements that the master holds
  std::vector<Range> of_ranks;  // as those of a CompressedPart
  at::Tensor master;            // float32, one dimension, contiguous
  at::Tensor gradient;          // room for a step's, while compressions fill it: float32, one dimension
  bool has_gradient = false;    // it was filled
};

/// All that compressions work on.
struct CompressedParts {
  std::vector<CompressedPart> parameters;
  std::vector<TrainedPart> states;
};

/// Fills the compute copies from their masters. `fresh`: the masters are initial values. Where ranks update parts, all
/// ranks call it together.
using CompressParts = std::function<void(const std::string& step, CompressedParts&, bool fresh)>;

}  // namespace capstan
