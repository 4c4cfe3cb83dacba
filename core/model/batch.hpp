#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace capstan {
class LayerHost;
class Recomputation;
}  // namespace capstan

/// One micro-batch: named tensors and named numbers. The C side knows only the pointer.
struct capstan_batch {
  std::map<std::string, at::Tensor, std::less<>> tensors;
  std::map<std::string, double, std::less<>> numbers;
  capstan::LayerHost* layers = nullptr;  // runs capstan::layer calls while the engine is in forward; else null
  capstan::Recomputation* recomputation = nullptr;  // runs layers as regions in a forward that trains; else null
  /// How much an evaluation's mean counts the loss: its rows, where batches differ in rows. 0 counts for nothing.
  double weight = 1;
};

namespace capstan {
using Batch = capstan_batch;
}
