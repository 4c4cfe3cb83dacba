#include "plugins/optimizers/onebit/host_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "capstan/sdk/elements/convert.hpp"
#include "plugins/optimizers/onebit/compression_kernels.hpp"
#include "plugins/optimizers/onebit/compression_rule.hpp"
#include "plugins/optimizers/onebit/step_kernels.hpp"
#include "plugins/optimizers/onebit/units.hpp"

namespace capstan::optimizers {
namespace {

/// A gradient as float32: where it is, or widened into a buffer of the calling thread's.
class Widened {
 public:
  Widened(const DeviceValues& grad, std::size_t begin, std::size_t end) {
    if (grad.type == ElementType::kFloat32) {
      values_ = static_cast<const float*>(grad.data) + begin;
      return;
    }
    const auto type = grad.type == ElementType::kBFloat16 ? sdk::Dtype::kBFloat16 : sdk::Dtype::kFloat16;
    optimizers::widen(static_cast<const std::uint16_t*>(grad.data) + begin, type, buffer_, end - begin);
    values_ = buffer_;
  }
  operator const float*() const { return values_; }

 private:
  alignas(64) float buffer_[kUnitElements];
  const float* values_;
};

void add(double* squares, double part) {
  if (squares) *squares += part;
}

/// The sums of what body(begin, end) returns, always added in the same order.
template <class Body>
LayerSums measure_units(std::size_t count, const Body& body) {
  std::vector<LayerSums> units((count + kUnitElements - 1) / kUnitElements);
  for_units(count, [&](std::size_t begin, std::size_t end) { units[begin / kUnitElements] = body(begin, end); });
  LayerSums sums;
  for (const LayerSums& unit : units) sums.add(unit);
  return sums;
}

}  // namespace

void HostKernels::copy(const float* from, std::size_t count, float* to) { std::copy_n(from, count, to); }
void HostKernels::fill(float* to, std::size_t count, float value) { std::fill_n(to, count, value); }
void HostKernels::zero(void* to, std::size_t bytes) {
  if (bytes > 0) std::memset(to, 0, bytes);
}
void HostKernels::upload(const void* host, std::size_t bytes, void* to) {
  if (bytes > 0) std::memcpy(to, host, bytes);
}
void HostKernels::download(const void* from, std::size_t bytes, void* host) { upload(from, bytes, host); }

void HostKernels::widen(const DeviceValues& grad, std::size_t count, float* out) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    std::copy_n(static_cast<const float*>(Widened(grad, begin, end)), end - begin, out + begin);
  });
}

void HostKernels::divide(const float* values, float divisor, std::size_t count, float* out) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) out[i] = values[i] / divisor;
  });
}

void HostKernels::mask(const std::uint8_t* keep, std::size_t run, std::size_t count, float* values) {
  for (std::size_t i = 0; i * run < count; ++i) {
    if (keep[i] == 0) std::fill_n(values + i * run, run, 0.0f);
  }
}

void HostKernels::measure(const float* values, std::size_t count, double* squares) {
  add(squares, sum_units(count, [&](std::size_t begin, std::size_t end) {
        double part = 0;
        for (std::size_t i = begin; i < end; ++i) part += static_cast<double>(values[i]) * values[i];
        return part;
      }));
}

void HostKernels::compress(const std::vector<OutgoingShare>& shares) {
  for (const OutgoingShare& share : shares) {
    const float scale = scale_of(*share.squares, share.elements);
    std::memcpy(share.scale, &scale, sizeof scale);
    std::fill(share.signs + share.count / 8, share.signs + share.padded / 8, std::uint8_t{0xff});
    for_units(share.count, [&](std::size_t begin, std::size_t end) {
      compress_signs(share.values + begin, end - begin, scale, share.signs + begin / 8);
    });
    if (!std::isfinite(scale)) std::fill_n(share.values, share.count, 0.0f);
  }
}

void HostKernels::serve(const std::vector<ArrivedShare>& shares) {
  for (const ArrivedShare& share : shares) {
    std::vector<float> scales(share.ranks);
    for (std::size_t rank = 0; rank < share.ranks; ++rank) scales[rank] = scale_at(share, rank);
    *share.squares = sum_units(share.count, [&](std::size_t begin, std::size_t end) {
      std::vector<const std::uint8_t*> signs(share.ranks);
      for (std::size_t rank = 0; rank < share.ranks; ++rank) {
        signs[rank] = share.signs + rank * share.stride + begin / 8;
      }
      return add_signs_and_measure(signs, scales, share.values + begin, end - begin);
    });
  }
}

void HostKernels::expand(const ArrivedBuffer& buffer, std::size_t begin, std::size_t count, float* out) {
  const std::size_t end = begin + count;
  for (std::size_t at = begin; at < end;) {
    const std::size_t rank = at / buffer.padded;
    const std::size_t inside = at - rank * buffer.padded;
    const std::uint8_t* signs = buffer.signs + rank * buffer.stride;
    const float scale = float_at(buffer.scale + rank * buffer.stride);
    // Signs are expanded from whole bytes on.
    if (inside % 8 != 0) {
      const std::size_t head = std::min(8 - inside % 8, end - at);
      float byte[8];
      expand_signs(signs + inside / 8, scale, byte, 8);
      std::copy_n(byte + inside % 8, head, out);
      at += head;
      out += head;
      continue;
    }
    const std::size_t part = std::min(buffer.padded - inside, end - at);
    for_units(part, [&](std::size_t first, std::size_t last) {
      expand_signs(signs + (inside + first) / 8, scale, out + first, last - first);
    });
    at += part;
    out += part;
  }
}

void HostKernels::add_gradient(const DeviceValues& grad, float factor, float* error, std::size_t count,
                               double* squares) {
  add(squares, sum_units(count, [&](std::size_t begin, std::size_t end) {
        return add_and_measure(Widened(grad, begin, end), factor, error + begin, end - begin);
      }));
}

void HostKernels::add_blended(const Moments& moments, const float* m, const DeviceValues& grad, float factor,
                              float* error, std::size_t count, double* squares) {
  add(squares, sum_units(count, [&](std::size_t begin, std::size_t end) {
        return optimizers::add_blended(moments, m + begin, Widened(grad, begin, end), factor, error + begin,
                                       end - begin);
      }));
}

void HostKernels::add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count,
                                     double* squares) {
  add(squares, sum_units(count, [&](std::size_t begin, std::size_t end) {
        return optimizers::add_preconditioned(eps, u + begin, v + begin, error + begin, end - begin);
      }));
}

void HostKernels::blend(const Moments& moments, const DeviceValues& grad, float* m, std::size_t count) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    blend_gradient(moments, Widened(grad, begin, end), m + begin, end - begin);
  });
}

void HostKernels::frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    optimizers::frozen_step(rates, m + begin, v + begin, p + begin, end - begin);
  });
}

void HostKernels::blend_and_step(const AdaptiveNumbers& numbers, const float* grad, const float* v, float* m, float* p,
                                 std::size_t count) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    blend_gradient(numbers.moments, grad + begin, m + begin, end - begin);
    optimizers::frozen_step(numbers.rates, m + begin, v + begin, p + begin, end - begin);
  });
}

void HostKernels::local_step(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* common,
                             const float* v, float* m, float* u, float* p, std::size_t count) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    optimizers::local_step(numbers, Widened(grad, begin, end), common + begin, v + begin, m + begin, u + begin,
                           p + begin, end - begin);
  });
}

void HostKernels::join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
                            std::size_t count) {
  for_units(count, [&](std::size_t begin, std::size_t end) {
    optimizers::join_step(eps, rate_sum, v + begin, u + begin, common + begin, m + begin, p + begin, end - begin);
  });
}

void HostKernels::blend_and_measure(const AdaptiveNumbers& numbers, const DeviceValues& grad, const float* p, float* m,
                                    float* v, std::size_t count, LayerSums* sums) {
  *sums = measure_units(count, [&](std::size_t begin, std::size_t end) {
    return optimizers::blend_and_measure(numbers, Widened(grad, begin, end), p + begin, m + begin, v + begin,
                                         end - begin);
  });
}

void HostKernels::refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged,
                                      const float* p, const float* v, float* m, float* fresh, std::size_t count,
                                      LayerSums* sums) {
  *sums = measure_units(count, [&](std::size_t begin, std::size_t end) {
    return optimizers::refresh_and_measure(numbers, scaling, averaged + begin, p + begin, v + begin, m + begin,
                                           fresh + begin, end - begin);
  });
}

}  // namespace capstan::optimizers
