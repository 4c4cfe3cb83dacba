#include "op_cost.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <unordered_map>

// Formulas of DeepSpeed's profiler for forward operators, with its oddities put right: broadcasts are aligned from the
// right, interpolation counts every channel, a transposed convolution its own result. Backward operators by what they
// compute: matrix products as such, convolutions one product for each gradient, attention with its scores recomputed,
// everything else like its forward.

namespace capstan::profiler {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using Formula = OpCost (*)(Arguments);

const at::Tensor& tensor(Arguments arguments, std::size_t index) { return arguments[index].toTensor(); }
bool given(Arguments arguments, std::size_t index) {
  return index < arguments.size() && arguments[index].isTensor() && arguments[index].toTensor().defined();
}
double numel(Arguments arguments, std::size_t index = 0) {
  return given(arguments, index) ? static_cast<double>(tensor(arguments, index).numel()) : 0;
}
double last_size(const at::Tensor& value) { return value.dim() == 0 ? 1 : static_cast<double>(value.size(-1)); }

OpCost macs(double count) { return {.flops = 2 * count, .macs = count}; }

OpCost nothing(Arguments) { return {}; }
OpCost each_input(Arguments arguments) { return {.flops = numel(arguments)}; }
OpCost each_output(Arguments) { return {.flops_per_output = 1}; }

/// Each element of the result is a sum over `length` products.
OpCost products(double length) { return {.flops_per_output = 2 * length, .macs_per_output = length}; }
OpCost product(Arguments arguments) { return products(last_size(tensor(arguments, 0))); }
/// addmm, baddbmm: beta * input + m1 @ m2.
OpCost product_plus(Arguments arguments) {
  OpCost cost = products(last_size(tensor(arguments, 1)));
  cost.flops = numel(arguments, 0);
  return cost;
}

/// Products for each element of a convolution's result.
double window(const at::Tensor& weight) {
  return static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
}
OpCost convolution_cost(Arguments arguments, bool transposed) {
  const at::Tensor& weight = tensor(arguments, 1);
  // A transposed one spreads each element of its input over a window.
  OpCost cost = transposed ? macs(numel(arguments) * window(weight)) : products(window(weight));
  if (given(arguments, 2)) cost.flops_per_output += 1;
  return cost;
}
OpCost convolution(Arguments arguments) { return convolution_cost(arguments, false); }
OpCost transposed_convolution(Arguments arguments) { return convolution_cost(arguments, true); }
OpCost any_convolution(Arguments arguments) { return convolution_cost(arguments, arguments[6].toBool()); }
/// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
OpCost convolution_backward(Arguments arguments) {
  const bool transposed = arguments[7].toBool();
  const auto mask = arguments[10].toBoolList();
  const double forward = numel(arguments, transposed ? 1 : 0) * window(tensor(arguments, 2));
  OpCost cost = macs(forward * ((mask[0] ? 1 : 0) + (mask[1] ? 1 : 0)));
  if (mask[2]) cost.flops += numel(arguments, 0);
  return cost;
}

struct Attention {
  double rows, length, d, dv;  // rows of the query over batch and heads; length of the key; widths of key and value

  Attention(Arguments arguments, std::size_t query)
      : d(last_size(tensor(arguments, query))), dv(last_size(tensor(arguments, query + 2))) {
    rows = numel(arguments, query) / d;
    length = static_cast<double>(tensor(arguments, query + 1).size(-2));
  }
};
OpCost attention(Arguments arguments) {
  const Attention shape(arguments, 0);
  return macs(shape.rows * shape.length * (shape.d + shape.dv));
}
/// The scores again, then the gradients of scores, values, queries and keys.
OpCost attention_backward(Arguments arguments) {
  const Attention shape(arguments, 1);
  return macs(shape.rows * shape.length * (3 * shape.d + 2 * shape.dv));
}

/// What the engine computes in attention's place: (q, k, v, scores), the scores of the blocks that a layout sets.
OpCost sparse_attention(Arguments arguments) {
  return macs(arguments[3].toDouble() * (last_size(tensor(arguments, 0)) + last_size(tensor(arguments, 2))));
}
OpCost sparse_attention_backward(Arguments arguments) {
  return macs(arguments[3].toDouble() * (3 * last_size(tensor(arguments, 0)) + 2 * last_size(tensor(arguments, 2))));
}

OpCost batch_norm(Arguments arguments) {
  const bool affine = given(arguments, 1), training = arguments[5].toBool();
  return {.flops = numel(arguments) * (training ? (affine ? 5 : 4) : (affine ? 2 : 1))};
}
template <std::size_t Weight>
OpCost norm(Arguments arguments) {
  return {.flops = numel(arguments) * (given(arguments, Weight) ? 5 : 4)};
}

/// Recurrent layers: (input, state or states, parameters, has_biases, layers, dropout, train, bidirectional,
/// batch_first). The parameters of each layer and direction: W_ih, W_hh and, with biases, b_ih, b_hh.
template <int PointwisePerHidden>
OpCost recurrent(Arguments arguments) {
  if (!arguments[2].isTensorList()) return {};  // a packed sequence, whose length is data
  const auto parameters = arguments[2].toTensorVector();
  const bool biases = arguments[3].toBool();
  const double steps = static_cast<double>(tensor(arguments, 0).size(0) * tensor(arguments, 0).size(1));
  double flops = 0;
  for (std::size_t i = 0; i + 1 < parameters.size(); i += biases ? 4 : 2) {
    const double gates = static_cast<double>(parameters[i].size(0)),
                 hidden = static_cast<double>(parameters[i + 1].size(1));
    flops += 2.0 * static_cast<double>(parameters[i].numel() + parameters[i + 1].numel()) - (biases ? 0 : 2 * gates);
    flops += hidden * PointwisePerHidden;
  }
  return {.flops = flops * steps};
}

const std::unordered_map<std::string_view, Formula>& formulas() {
  static const auto* const kFormulas = [] {
    auto* table = new std::unordered_map<std::string_view, Formula>;
    const auto add = [&](Formula formula, std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) table->emplace(name, formula);
    };
    add(product, {"aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot"});
    add(product_plus, {"aten::addmm", "aten::baddbmm", "aten::addmv"});
    add(convolution, {"aten::conv1d", "aten::conv2d", "aten::conv3d"});
    add(transposed_convolution, {"aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"});
    add(any_convolution, {"aten::convolution", "aten::_convolution"});
    add(convolution_backward, {"aten::convolution_backward"});
    add(attention, {"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
                    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
                    "aten::_scaled_dot_product_cudnn_attention"});
    add(attention_backward,
        {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
         "aten::_scaled_dot_product_flash_attention_backward", "aten::_scaled_dot_product_efficient_attention_backward",
         "aten::_scaled_dot_product_cudnn_attention_backward"});
    add(sparse_attention, {kSparseAttention});
    add(sparse_attention_backward, {"capstan::block_sparse_attention_backward"});
    add(each_input, {"aten::relu",
                     "aten::relu_",
                     "aten::prelu",
                     "aten::elu",
                     "aten::elu_",
                     "aten::leaky_relu",
                     "aten::leaky_relu_",
                     "aten::relu6",
                     "aten::relu6_",
                     "aten::silu",
                     "aten::silu_",
                     "aten::gelu",
                     "aten::gelu_",
                     "aten::softmax",
                     "aten::_softmax",
                     "aten::max_pool1d",
                     "aten::max_pool2d",
                     "aten::max_pool3d",
                     "aten::max_pool1d_with_indices",
                     "aten::max_pool2d_with_indices",
                     "aten::max_pool3d_with_indices",
                     "aten::avg_pool1d",
                     "aten::avg_pool2d",
                     "aten::avg_pool3d",
                     "aten::adaptive_avg_pool1d",
                     "aten::adaptive_avg_pool2d",
                     "aten::adaptive_avg_pool3d",
                     "aten::adaptive_max_pool1d",
                     "aten::adaptive_max_pool2d",
                     "aten::adaptive_max_pool3d"});
    add(each_input, {"aten::gelu_backward", "aten::silu_backward", "aten::threshold_backward", "aten::elu_backward",
                     "aten::leaky_relu_backward", "aten::_softmax_backward_data"});
    add(batch_norm, {"aten::batch_norm"});
    add(norm<1>, {"aten::instance_norm"});
    add(norm<2>, {"aten::layer_norm", "aten::group_norm", "aten::native_layer_norm"});
    add(norm<5>, {"aten::native_layer_norm_backward"});
    add(each_output, {"aten::mul", "aten::mul_", "aten::add", "aten::add_", "aten::upsample_nearest1d",
                      "aten::upsample_nearest2d", "aten::upsample_nearest3d", "aten::upsample_linear1d",
                      "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::upsample_trilinear3d"});
    add(recurrent<1>, {"aten::rnn_tanh", "aten::rnn_relu"});
    add(recurrent<7>, {"aten::gru"});
    add(recurrent<10>, {"aten::lstm"});
    // Counted as nothing, whatever they are made of.
    add(nothing, {"aten::embedding",
                  "aten::embedding_bag",
                  "aten::dropout",
                  "aten::dropout_",
                  "aten::native_dropout",
                  "aten::feature_dropout",
                  "aten::alpha_dropout",
                  "aten::log_softmax",
                  "aten::cross_entropy_loss",
                  "aten::nll_loss",
                  "aten::nll_loss_nd",
                  "aten::mse_loss",
                  "aten::l1_loss",
                  "aten::smooth_l1_loss",
                  "aten::huber_loss",
                  "aten::binary_cross_entropy",
                  "aten::binary_cross_entropy_with_logits",
                  "aten::kl_div",
                  "aten::cosine_embedding_loss",
                  "aten::margin_ranking_loss",
                  "aten::ctc_loss"});
    return table;
  }();
  return *kFormulas;
}

}  // namespace

std::optional<OpCost> cost_of(std::string_view name, Arguments arguments) {
  const auto found = formulas().find(name);
  if (found == formulas().end()) return std::nullopt;
  return found->second(arguments);
}

}  // namespace capstan::profiler
