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
};

/// Fills the compute copies from their masters. Where ranks update parts, all ranks call it together.
using CompressParts = std::function<void(const std::string& step, std::vector<CompressedPart>&)>;

}  // namespace capstan
