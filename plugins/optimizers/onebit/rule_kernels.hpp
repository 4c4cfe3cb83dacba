#pragma once

#include <utility>

#include "plugins/optimizers/onebit/rules.hpp"

namespace capstan::optimizers {

/// Kernels made of rules that a `Launch` applies to all indices:
///
///   typename Launch::Gradient(const DeviceValues&)     element i as float32, by operator()(i)
///   each(count, body)                                  body(i)
///   add_up(count, body, out)                           *out += sum of body(i) (null: nobody asks), a double
///   total(count, body, out)                            *out = sum of body(i), LayerSums
///   upload, download, zero                             as in Kernels
///   table(items)                                       a copy on the device, until the next but one
///   each_of(bytes, body)                               body(k, i) for i < bytes[k]
///   total_of(bytes, body)                              body.put_total(k, sum of body(k, i))
///   floats(count)                                      room on the device, until the next
template <class Launch>
class RuleKernels final : public Kernels {
 public:
  template <class... Given>
  explicit RuleKernels(Given&&... given) : launch_(std::forward<Given>(given)...) {}

  void copy(const float* from, std::size_t count, float* to) override { launch_.each(count, rules::Copy{from, to}); }
  void fill(float* to, std::size_t count, float value) override { launch_.each(count, rules::Fill{to, value}); }
  void zero(void* to, std::size_t bytes) override { launch_.zero(to, bytes); }
  void upload(const void* host, std::size_t bytes, void* to) override { launch_.upload(host, bytes, to); }
  void download(const void* from, std::size_t bytes, void* host) override { launch_.download(from, bytes, host); }
  void widen(const DeviceValues& grad, std::size_t count, float* out) override {
    launch_.each(count, rules::Widen<Grad>{Grad(grad), out});
  }
  void divide(const float* values, float divisor, std::size_t count, float* out) override {
    launch_.each(count, rules::Divide{values, divisor, out});
  }
  void mask(const std::uint8_t* keep, std::size_t run, std::size_t count, float* values) override {
    launch_.each(count, rules::Mask{keep, run, values});
  }
  void measure(const float* values, std::size_t count, double* squares) override {
    launch_.add_up(count, rules::Measure{values}, squares);
  }

  void compress(const std::vector<OutgoingShare>& shares) override {
    if (shares.empty()) return;
    const OutgoingShare* table = launch_.table(shares);
    float* scales = launch_.floats(shares.size());
    launch_.each(shares.size(), rules::Scales{table, scales});
    std::vector<std::size_t> bytes;
    for (const OutgoingShare& share : shares) bytes.push_back(share.padded / 8);
    launch_.each_of(bytes, rules::Compress{table, scales});
  }
  void serve(const std::vector<ArrivedShare>& shares) override {
    if (shares.empty()) return;
    std::vector<std::size_t> bytes;
    for (const ArrivedShare& share : shares) bytes.push_back((share.count + 7) / 8);
    launch_.total_of(bytes, rules::Serve{launch_.table(shares)});
  }
  void expand(const ArrivedBuffer& buffer, std::size_t begin, std::size_t count, float* out) override {
    if (count == 0) return;
    launch_.each((begin + count + 7) / 8 - begin / 8, rules::Expand{buffer, begin, count, out});
  }

  void add_gradient(const DeviceValues& grad, float factor, float* error, std::size_t count, double* squares) override {
    launch_.add_up(count, rules::AddGradient<Grad>{Grad(grad), factor, error}, squares);
  }
  void add_blended(const Moments& moments, const float* m, const DeviceValues& grad, float factor, float* error,
                   std::size_t count, double* squares) override {
    launch_.add_up(count, rules::AddBlended<Grad>{moments, m, Grad(grad), factor, error}, squares);
  }
  void add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count,
                          double* squares) override {
    launch_.add_up(count, rules::AddPreconditioned{eps, u, v, error}, squares);
  }

  void blend(const Moments& moments, const DeviceValues& grad, float* m, std::size_t count) override {
    launch_.each(count, rules::Blend<Grad>{moments, Grad(grad), m});
  }
  void frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count) override {
    launch_.each(count, rules::FrozenStep{rates, m, v, p});
  }
  void blend_and_step(const AdaptiveNumbers& numbers, const float* grad, const float* v, float* m, float* p,
                      std::size_t count) override {
    launch_.each(count, rules::BlendAndStep{numbers, grad, v, m, p});
  }
  void local_step(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* common, const float* v,
                  float* m, float* u, float* p, std::size_t count) override {
    launch_.each(count, rules::LocalStep<Grad>{numbers, Grad(grad), common, v, m, u, p});
  }
  void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
                 std::size_t count) override {
    launch_.each(count, rules::JoinStep{eps, -rate_sum, v, u, common, m, p});
  }

  void blend_and_measure(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* p, float* m, float* v,
                         std::size_t count, LayerSums* sums) override {
    launch_.total(count, rules::BlendAndMeasure<Grad>{numbers, Grad(grad), p, m, v}, sums);
  }
  void refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                           const float* v, float* m, float* fresh, std::size_t count, LayerSums* sums) override {
    launch_.total(count, rules::RefreshAndMeasure{numbers, scaling, averaged, p, v, m, fresh}, sums);
  }

 private:
  using Grad = typename Launch::Gradient;

  Launch launch_;
};

}  // namespace capstan::optimizers
