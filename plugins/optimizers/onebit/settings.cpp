#include "plugins/optimizers/onebit/settings.hpp"

#include <string>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::optimizers {

void check_settings(std::string_view type, const Device& device, const sdk::Host& host, const sdk::Params& params) {
  const std::string name(type);
  params.require(!params.boolean("amsgrad"), "amsgrad", name + " has no AMSGrad form; remove it or set it to false.");
  params.require(!params.boolean("eps_inside_sqrt"), "eps_inside_sqrt",
                 name + " adds eps outside of the square root; remove it or set it to false.");
  if (host.rank() != 0) return;
  if (params.has("bias_correction") && params.boolean("bias_correction")) {
    host.info("bias_correction: true has no effect; " + name + " as published does not correct its moments.");
  }
  if (params.has("cuda_aware") && params.boolean("cuda_aware")) {
    host.info("cuda_aware: true has no effect; it is about MPI, and the engine's process group carries the exchange.");
  }
  if (device.place() == sdk::Place::kHost && host.world_size() > 1 && params.text("comm_backend_name") == "nccl") {
    host.info("comm_backend_name 'nccl': this run is on CPUs, so gloo carries the exchange of " + name + ".");
  }
}

CompressedAllReduce::Over carrier(const Device& device, const sdk::Params& params) {
  const std::string name = params.text("comm_backend_name");
  const bool asks_for_gloo = name == "gloo" || name == "cpu";
  return asks_for_gloo && device.place() != sdk::Place::kHost ? CompressedAllReduce::Over::kHost
                                                              : CompressedAllReduce::Over::kDevice;
}

OneBitGroup::OneBitGroup(const sdk::Group& group)
    : lr(group.number("lr")), eps(group.number("eps")), weight_decay(group.number("weight_decay")) {
  double betas[2];
  group.read("betas", betas, 2);
  beta1 = betas[0];
  beta2 = betas[1];
}

StepRates OneBitGroup::rates() const {
  return {static_cast<float>(lr), static_cast<float>(eps), static_cast<float>(weight_decay)};
}

AdaptiveNumbers OneBitGroup::numbers(double grad_scale) const {
  return {.moments = Moments(grad_scale, 0.0, beta1, beta2), .rates = rates()};
}

void require_same(const sdk::Step& step, const char* name, double value) {
  for (std::size_t i = 0; i < step.group_count(); ++i) {
    if (step.group(i).number(name) != value) {
      throw sdk::ConfigMistake(std::string("optimizer.params.") + name,
                               "is one for all parameter groups; group " + std::to_string(i) +
                                   " has another one. Set it in optimizer.params alone.");
    }
  }
}

}  // namespace capstan::optimizers
