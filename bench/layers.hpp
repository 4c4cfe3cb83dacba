#pragma once

#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/memory/tensor_handle.hpp"
#include "core/model/model.hpp"

namespace capstan::bench {

/// A model of square matrices: x -> tanh(x W'), several times; the loss is the mean square of the last.
struct Layers {
  std::vector<at::Tensor> matrices;

  Layers(std::int64_t layers, std::int64_t width) {
    for (std::int64_t i = 0; i < layers; ++i) {
      at::Tensor matrix = at::randn({width, width}).mul_(1 / std::sqrt(static_cast<double>(width)));
      matrices.push_back(matrix.requires_grad_());
    }
  }
  at::Tensor loss(const at::Tensor& input) const {
    at::Tensor hidden = input;
    for (const at::Tensor& matrix : matrices) hidden = at::tanh(at::linear(hidden, matrix));
    return hidden.pow(2).mean();
  }
  /// As an engine takes it; refers to this.
  Model shown();
};

inline Model Layers::shown() {
  static const capstan_model kTable = [] {
    capstan_model table{};
    table.struct_size = sizeof table;
    table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      int index = 0;
      for (const at::Tensor& matrix : static_cast<Layers*>(self)->matrices) {
        visitor->tensor(visitor->ctx, as_str("m" + std::to_string(index++)), handle_of(matrix), CAPSTAN_ROLE_PARAMETER);
      }
      return CAPSTAN_OK;
    };
    table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
      const at::Tensor& input = batch->tensors.find("x")->second;
      *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(static_cast<Layers*>(self)->loss(input)));
      return CAPSTAN_OK;
    };
    table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
    return table;
  }();
  return {&kTable, this, [](void*) {}, "layers"};
}

}  // namespace capstan::bench
