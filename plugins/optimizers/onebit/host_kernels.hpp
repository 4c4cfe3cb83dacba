#pragma once

#include "plugins/optimizers/onebit/kernels.hpp"

namespace capstan::optimizers {

/// In host memory, on LibTorch's threads where there is enough to do. Sums are made over fixed units, in their order.
class HostKernels final : public Kernels {
 public:
  void copy(const float* from, std::size_t count, float* to) override;
  void fill(float* to, std::size_t count, float value) override;
  void zero(void* to, std::size_t bytes) override;
  void upload(const void* host, std::size_t bytes, void* to) override;
  void download(const void* from, std::size_t bytes, void* host) override;
  void widen(const DeviceValues& grad, std::size_t count, float* out) override;
  void divide(const float* values, float divisor, std::size_t count, float* out) override;
  void mask(const std::uint8_t* keep, std::size_t run, std::size_t count, float* values) override;
  void measure(const float* values, std::size_t count, double* squares) override;

  void compress(const std::vector<OutgoingShare>& shares) override;
  void serve(const std::vector<ArrivedShare>& shares) override;
  void expand(const ArrivedBuffer& buffer, std::size_t begin, std::size_t count, float* out) override;

  void add_gradient(const DeviceValues& grad, float factor, float* error, std::size_t count, double* squares) override;
  void add_blended(const Moments& moments, const float* m, const DeviceValues& grad, float factor, float* error,
                   std::size_t count, double* squares) override;
  void add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count,
                          double* squares) override;

  void blend(const Moments& moments, const DeviceValues& grad, float* m, std::size_t count) override;
  void frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count) override;
  void blend_and_step(const AdaptiveNumbers& numbers, const float* grad, const float* v, float* m, float* p,
                      std::size_t count) override;
  void local_step(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* common, const float* v,
                  float* m, float* u, float* p, std::size_t count) override;
  void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
                 std::size_t count) override;

  void blend_and_measure(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* p, float* m, float* v,
                         std::size_t count, LayerSums* sums) override;
  void refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                           const float* v, float* m, float* fresh, std::size_t count, LayerSums* sums) override;
};

}  // namespace capstan::optimizers
