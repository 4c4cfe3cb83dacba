#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "capstan/sdk/elements/device_block.hpp"
#include "plugins/optimizers/onebit/layer_sums.hpp"
#include "plugins/optimizers/onebit/rates.hpp"

namespace capstan::optimizers {

/// What one rank serves of a buffer, on its way to it. Signs are packed eight a byte, the first element in the most
/// significant bit, 1 for values from zero up; the bits of the padding are 1.
struct OutgoingShare {
  float* values;          // value + error; afterwards what the signs miss, zeros where the scale is not finite
  std::size_t count;      // how many values there are
  std::size_t padded;     // elements with the padding, a multiple of 8
  const double* squares;  // the sum over the whole buffer
  std::size_t elements;   // elements of the whole buffer
  std::uint8_t* signs;    // gets padded / 8 bytes
  std::uint8_t* scale;    // gets a float, not aligned
};

/// What one rank serves of a buffer, as it came from all: rank r's signs and scale are r * stride bytes further.
struct ArrivedShare {
  const std::uint8_t* signs;
  const std::uint8_t* scale;
  std::size_t stride, ranks;
  float* values;  // the error; afterwards with the ranks' mean added
  std::size_t count;
  double* squares;  // becomes the sum of squares of the result
};

/// A whole buffer as it came from the ranks that serve it, `padded` elements each: rank r's signs and scale are
/// r * stride bytes further.
struct ArrivedBuffer {
  const std::uint8_t* signs;
  const std::uint8_t* scale;
  std::size_t stride, padded;
};

/// Loops over arrays in the memory of one device, in the order in which they are called; of memory that they read or
/// write nothing may be freed before a wait, unless through LibTorch. An element's result is the same on every device
/// up to the order of the sums, which each device fixes. Sums add to what `squares` points to, on the device; null:
/// nobody asks.
class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void copy(const float* from, std::size_t count, float* to) = 0;
  virtual void fill(float* to, std::size_t count, float value) = 0;
  virtual void zero(void* to, std::size_t bytes) = 0;
  /// Between the host's memory and the device's. Both wait.
  virtual void upload(const void* host, std::size_t bytes, void* to) = 0;
  virtual void download(const void* from, std::size_t bytes, void* host) = 0;
  /// out = grad, exactly.
  virtual void widen(const DeviceValues& grad, std::size_t count, float* out) = 0;
  /// out = values / divisor. May be in place.
  virtual void divide(const float* values, float divisor, std::size_t count, float* out) = 0;
  /// Zeros where keep[i / run] is 0.
  virtual void mask(const std::uint8_t* keep, std::size_t run, std::size_t count, float* values) = 0;
  /// *squares += sum of values^2
  virtual void measure(const float* values, std::size_t count, double* squares) = 0;

  // Error-compensated sign compression (Tang et al. 2021):
  //   b = values + error;  s = |b| / sqrt(n);  sign = b >= 0;  error = b - s*sign
  virtual void compress(const std::vector<OutgoingShare>& shares) = 0;
  virtual void serve(const std::vector<ArrivedShare>& shares) = 0;
  /// out = elements [begin, begin + count) of a buffer.
  virtual void expand(const ArrivedBuffer& buffer, std::size_t begin, std::size_t count, float* out) = 0;

  /// error += factor * grad
  virtual void add_gradient(const DeviceValues& grad, float factor, float* error, std::size_t count,
                            double* squares) = 0;
  /// error += factor * (beta1*m + (1-beta1)*grad*scale)
  virtual void add_blended(const Moments& moments, const float* m, const DeviceValues& grad, float factor, float* error,
                           std::size_t count, double* squares) = 0;
  /// error += u * (sqrt(v) + eps)
  virtual void add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count,
                                  double* squares) = 0;

  /// m = beta1*m + (1-beta1)*grad*scale
  virtual void blend(const Moments& moments, const DeviceValues& grad, float* m, std::size_t count) = 0;
  /// p -= lr * (m / (sqrt(v) + eps) + decay*p)
  virtual void frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count) = 0;
  /// blend() and frozen_step().
  virtual void blend_and_step(const AdaptiveNumbers& numbers, const float* grad, const float* v, float* m, float* p,
                              std::size_t count) = 0;
  /// A step of one rank by itself: m as blend();  u -= lr * (m / (sqrt(v) + eps) + decay*p);  p = common + u
  virtual void local_step(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* common, const float* v,
                          float* m, float* u, float* p, std::size_t count) = 0;
  /// Takes the average of what add_preconditioned() gave, in u:
  /// m = -u/rate_sum;  p = common = common + u / (sqrt(v) + eps);  u = 0
  virtual void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
                         std::size_t count) = 0;

  /// m as blend(), v = beta2*v + (1-beta2)*(grad*scale)^2; p stays. *sums becomes what the step's size follows from,
  /// without factor.
  virtual void blend_and_measure(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* p, float* m,
                                 float* v, std::size_t count, LayerSums* sums) = 0;
  /// Takes the exchanged momentum in `averaged`: m = averaged / scaling and, from what that says of the gradient, the
  /// fresh second moment. *sums becomes what the step's size follows from.
  virtual void refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                                   const float* v, float* m, float* fresh, std::size_t count, LayerSums* sums) = 0;
};

}  // namespace capstan::optimizers
