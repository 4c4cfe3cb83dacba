#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/compression/compressions.hpp"

namespace capstan::testing {

/// A layer that compressions are told of; its one parameter is `weight`.
struct Layer {
  std::string path, class_name;
  std::vector<std::int64_t> shape;
  bool trained = true;
};

/// The bundled compression of a section of compression_training, with a plan for these layers. `host` must outlive it;
/// null: one without collectives.
Compressions planned(const std::string& section_json, const char* type, const std::vector<Layer>& layers,
                     const std::vector<std::string>& corrections = {}, const capstan_host* host = nullptr);

/// What it makes of the layer's weight after so many updates, in fp32.
at::Tensor compressed(Compressions& compressions, const Layer& layer, const at::Tensor& weight,
                      std::int64_t updates = 0);

/// The values that codes stand for.
at::Tensor decoded(const WeightCodes& codes);

}  // namespace capstan::testing
