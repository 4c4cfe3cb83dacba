#include <ATen/core/Tensor.h>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/observer.hpp"

namespace capstan::probes {

/// Fake quantisation: the model computes with weights rounded to 2^bits - 1 steps of max|w|, symmetric about 0. The
/// masters stay as they are and take the gradient of the rounded copy (the straight-through estimator, which the engine
/// provides).
class FakeQuant {
 public:
  FakeQuant(sdk::Host, const sdk::Params& params)
      : largest_level_(static_cast<double>((std::int64_t{1} << (params.integer("bits") - 1)) - 1)),
        modules_(params.text("modules")) {}

  bool selects_weight(std::string_view name, std::span<const std::int64_t> shape) {
    return shape.size() == 2 && name.starts_with(modules_);
  }

  void transform_weight(std::string_view, capstan_tensor master, capstan_tensor compute, std::int64_t) {
    const at::Tensor& weight = sdk::borrow(master);
    const at::Tensor step = weight.abs().max().div(largest_level_).clamp_min(1e-12);
    sdk::borrow(compute).copy_(weight.div(step).round_().mul_(step));
  }

 private:
  double largest_level_;
  std::string modules_;
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::probes::FakeQuant, "FakeQuant">)
