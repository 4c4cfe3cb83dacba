// Cells of recurrent networks, which LibTorch computes on devices by fused operators that the CPU lacks. Here they are
// composed of other operators, by the formulas and with the workspaces of LibTorch's
// (aten/src/ATen/native/cuda/RNN.cu).

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "torch/backend.hpp"
#include "torch/registration.hpp"

namespace capstan::emulated {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

/// The derivative of a sigmoid or a tanh by its value.
at::Tensor of_sigmoid(const at::Tensor& value) { return value * (1 - value); }
at::Tensor of_tanh(const at::Tensor& value) { return 1 - value * value; }

at::Tensor or_zeros(const OptionalTensor& gradient, const at::Tensor& like) {
  return gradient && gradient->defined() ? *gradient : at::zeros_like(like);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor in = at::sigmoid(gates[0]), forget = at::sigmoid(gates[1]), cell = at::tanh(gates[2]),
                   out = at::sigmoid(gates[3]);
  const at::Tensor cy = forget * cx + in * cell;
  return {out * at::tanh(cy), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                                  const OptionalTensor& grad_cy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& workspace,
                                                                  bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::Tensor tanh_cy = at::tanh(cy), of_hy = or_zeros(grad_hy, cy);
  const at::Tensor of_cy = of_hy * out * of_tanh(tanh_cy) + or_zeros(grad_cy, cy);
  const at::Tensor of_gates = at::cat({of_cy * cell * of_sigmoid(in), of_cy * cx * of_sigmoid(forget),
                                       of_cy * in * of_tanh(cell), of_hy * tanh_cy * of_sigmoid(out)},
                                      1);
  return {of_gates, of_cy * forget, has_bias ? of_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = at::sigmoid(input[0] + hidden[0]), update = at::sigmoid(input[1] + hidden[1]);
  const at::Tensor fresh = at::tanh(input[2] + reset * hidden[2]);
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad_hy,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const at::Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hx = kept[3], &hidden = kept[4];
  const at::Tensor of_fresh = grad_hy * (1 - update) * of_tanh(fresh);
  const at::Tensor of_update = grad_hy * (hx - fresh) * of_sigmoid(update);
  const at::Tensor of_reset = of_fresh * hidden * of_sigmoid(reset);
  const at::Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  const at::Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {of_input, of_hidden, grad_hy * update, has_bias ? of_input.sum(0) : at::Tensor(),
          has_bias ? of_hidden.sum(0) : at::Tensor()};
}

}  // namespace

void register_cells(torch::Library& aten) {
  aten.impl("_thnn_fused_lstm_cell", lstm_cell);
  aten.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  aten.impl("_thnn_fused_gru_cell", gru_cell);
  aten.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace capstan::emulated
