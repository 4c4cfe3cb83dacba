#pragma once

#include <utility>

#include "plugins/optimizers/onebit/kernels.hpp"
#include "plugins/optimizers/onebit/step_rules.hpp"

namespace capstan::optimizers {

/// The kernels that a `Launch` makes of the rules of steps:
///
///   each(count, rule)             rule at each of count elements
///   add_up(count, rule, out)      likewise; *out += the rule's sum (null: nobody asks), a double
///   total(count, rule, out)       likewise; *out = the rule's sums, LayerSums
///   upload, download, zero        as in Kernels
template <class Launch>
class StepKernels : public Kernels {
 public:
  template <class... Given>
  explicit StepKernels(Given&&... given) : launch_(std::forward<Given>(given)...) {}

  void copy(const float* from, std::size_t count, float* to) override {
    launch_.each(count, step_rules::Copy{from, to});
  }
  void fill(float* to, std::size_t count, float value) override { launch_.each(count, step_rules::Fill{to, value}); }
  void zero(void* to, std::size_t bytes) override { launch_.zero(to, bytes); }
  void upload(const void* host, std::size_t bytes, void* to) override { launch_.upload(host, bytes, to); }
  void download(const void* from, std::size_t bytes, void* host) override { launch_.download(from, bytes, host); }
  void widen(const DeviceValues& grad, std::size_t count, float* out) override {
    launch_.each(count, step_rules::Widen{grad, out});
  }
  void divide(const float* values, float divisor, std::size_t count, float* out) override {
    launch_.each(count, step_rules::Divide{values, divisor, out});
  }
  void measure(const float* values, std::size_t count, double* squares) override {
    launch_.add_up(count, step_rules::Measure{values}, squares);
  }

  void add_gradient(const DeviceValues& grad, float factor, float* error, std::size_t count, double* squares) override {
    launch_.add_up(count, step_rules::AddGradient{grad, factor, error}, squares);
  }
  void add_blended(const Moments& moments, const float* m, const DeviceValues& grad, float factor, float* error,
                   std::size_t count, double* squares) override {
    launch_.add_up(count, step_rules::AddBlended{moments, m, grad, factor, error}, squares);
  }
  void add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count,
                          double* squares) override {
    launch_.add_up(count, step_rules::AddPreconditioned{eps, u, v, error}, squares);
  }

  void blend(const Moments& moments, const DeviceValues& grad, float* m, std::size_t count) override {
    launch_.each(count, step_rules::Blend{moments, grad, m});
  }
  void frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count) override {
    launch_.each(count, step_rules::FrozenStep{rates, m, v, p});
  }
  void blend_and_step(const AdaptiveNumbers& numbers, const float* grad, const float* v, float* m, float* p,
                      std::size_t count) override {
    launch_.each(count, step_rules::BlendAndStep{numbers, grad, v, m, p});
  }
  void local_step(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* common, const float* v,
                  float* m, float* u, float* p, std::size_t count) override {
    launch_.each(count, step_rules::LocalStep{numbers, grad, common, v, m, u, p});
  }
  void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
                 std::size_t count) override {
    launch_.each(count, step_rules::JoinStep{eps, -rate_sum, v, u, common, m, p});
  }

  void blend_and_measure(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* p, float* m, float* v,
                         std::size_t count, LayerSums* sums) override {
    launch_.total(count, step_rules::BlendAndMeasure{numbers, grad, p, m, v}, sums);
  }
  void refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                           const float* v, float* m, float* fresh, std::size_t count, LayerSums* sums) override {
    launch_.total(count, step_rules::RefreshAndMeasure{numbers, scaling, averaged, p, v, m, fresh}, sums);
  }

 protected:
  Launch launch_;
};

}  // namespace capstan::optimizers
