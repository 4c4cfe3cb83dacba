// Convolutions that LibTorch does not compute by an operator that the CPU has: depthwise ones on CUDA, and all of them
// on a device under PrivateUse1.

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "torch/compute.hpp"
#include "torch/registration.hpp"

namespace capstan::emulated {
namespace {

struct Shape {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  std::int64_t groups;
};

at::Tensor forward(const char* name, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                   const Shape& shape) {
  const int device = launch_reading(name, {input, weight, bias});
  const at::Tensor own_bias = view_of(bias);
  return to_device(at::convolution(view_of(input), view_of(weight),
                                   own_bias.defined() ? std::optional(own_bias) : std::nullopt, shape.stride,
                                   shape.padding, shape.dilation, shape.transposed, shape.output_padding, shape.groups),
                   device);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const char* name, const at::Tensor& gradient,
                                                        const at::Tensor& input, const at::Tensor& weight,
                                                        const Shape& shape, std::array<bool, 3> mask) {
  const int device = launch_reading(name, {gradient, input, weight});
  const auto [of_input, of_weight, of_bias] = at::convolution_backward(
      view_of(gradient), view_of(input), view_of(weight),
      at::OptionalIntArrayRef({shape.transposed ? weight.size(1) * shape.groups : weight.size(0)}), shape.stride,
      shape.padding, shape.dilation, shape.transposed, shape.output_padding, shape.groups, mask);
  return {given(of_input, device), given(of_weight, device), given(of_bias, device)};
}

at::Tensor depthwise(const at::Tensor& self, const at::Tensor& weight, at::IntArrayRef,
                     const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation) {
  const std::array<std::int64_t, 2> none{0, 0};
  return forward("_conv_depthwise2d", self, weight, bias.value_or(at::Tensor()),
                 {stride, padding, dilation, false, none, self.size(1)});
}

std::tuple<at::Tensor, at::Tensor> depthwise_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                      const at::Tensor& weight, at::IntArrayRef, at::IntArrayRef stride,
                                                      at::IntArrayRef padding, at::IntArrayRef dilation,
                                                      std::array<bool, 2> mask) {
  const std::array<std::int64_t, 2> none{0, 0};
  const auto [of_input, of_weight, of_bias] =
      backward("_conv_depthwise2d_backward", gradient, input, weight,
               {stride, padding, dilation, false, none, input.size(1)}, {mask[0], mask[1], false});
  return {of_input, of_weight};
}

/// A convolution that is dilated, of two or three dimensions.
std::tuple<at::Tensor, at::Tensor, at::Tensor> dilated_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                const at::Tensor& weight, at::IntArrayRef,
                                                                at::IntArrayRef stride, at::IntArrayRef padding,
                                                                at::IntArrayRef dilation, std::array<bool, 3> mask) {
  const std::vector<std::int64_t> none(stride.size());
  return backward("slow_conv_dilated_backward", gradient, input, weight, {stride, padding, dilation, false, none, 1},
                  mask);
}

/// A convolution that is transposed, of two or three dimensions.
std::tuple<at::Tensor, at::Tensor, at::Tensor> transposed_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                   const at::Tensor& weight, at::IntArrayRef,
                                                                   at::IntArrayRef stride, at::IntArrayRef padding,
                                                                   at::IntArrayRef output_padding,
                                                                   at::IntArrayRef dilation, std::array<bool, 3> mask) {
  return backward("slow_conv_transpose_backward", gradient, input, weight,
                  {stride, padding, dilation, true, output_padding, 1}, mask);
}

at::Tensor overrideable(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                        at::IntArrayRef output_padding, std::int64_t groups) {
  return forward("convolution_overrideable", input, weight, bias.value_or(at::Tensor()),
                 {stride, padding, dilation, transposed, output_padding, groups});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> overrideable_backward(const at::Tensor& gradient,
                                                                     const at::Tensor& input, const at::Tensor& weight,
                                                                     at::IntArrayRef stride, at::IntArrayRef padding,
                                                                     at::IntArrayRef dilation, bool transposed,
                                                                     at::IntArrayRef output_padding,
                                                                     std::int64_t groups, std::array<bool, 3> mask) {
  return backward("convolution_backward_overrideable", gradient, input, weight,
                  {stride, padding, dilation, transposed, output_padding, groups}, mask);
}

}  // namespace

void register_convolutions(torch::Library& aten) {
  if (dispatch_key() == c10::DispatchKey::CUDA) {
    aten.impl("_conv_depthwise2d", depthwise);
    at::native::conv_depthwise2d_backward_stub.set_cuda_dispatch_ptr(&depthwise_backward);
    at::native::slow_conv_dilated2d_backward_stub.set_cuda_dispatch_ptr(&dilated_backward);
    at::native::slow_conv_dilated3d_backward_stub.set_cuda_dispatch_ptr(&dilated_backward);
    at::native::slow_conv_transpose2d_backward_stub.set_cuda_dispatch_ptr(&transposed_backward);
    at::native::slow_conv_transpose3d_backward_stub.set_cuda_dispatch_ptr(&transposed_backward);
  } else {
    aten.impl("convolution_overrideable", overrideable);
    aten.impl("convolution_backward_overrideable", overrideable_backward);
  }
}

}  // namespace capstan::emulated
