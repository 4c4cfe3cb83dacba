#include "plugins/optimizers/onebit/host_kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/onebit/host_kernels.cpp"
#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/onebit/lanes_at-inl.h"

#define CAPSTAN_ONEBIT_RULES(X) \
  X(Copy)                       \
  X(Fill)                       \
  X(Widen)                      \
  X(Divide)                     \
  X(Measure)                    \
  X(AddGradient)                \
  X(AddBlended)                 \
  X(AddPreconditioned)          \
  X(Blend)                      \
  X(FrozenStep)                 \
  X(BlendAndStep)               \
  X(LocalStep)                  \
  X(JoinStep)                   \
  X(BlendAndMeasure)            \
  X(RefreshAndMeasure)

CAPSTAN_RULES
CAPSTAN_RULE_KERNEL(AdaptiveRule)

#define CAPSTAN_ONEBIT_KERNEL(Rule)                                                       \
  optimizers::LayerSums Rule##_at(const void* rule, std::size_t begin, std::size_t end) { \
    return apply_at<step_rules::Rule>(rule, begin, end);                                  \
  }
CAPSTAN_ONEBIT_RULES(CAPSTAN_ONEBIT_KERNEL)
#undef CAPSTAN_ONEBIT_KERNEL

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

CAPSTAN_RULE_EXPORT(AdaptiveRule)

namespace capstan::elements {
namespace step_rules = HWY_NAMESPACE::step_rules;

/// Applies a rule with the instructions that the processor has.
template <class Rule>
struct ApplyAt;
#define CAPSTAN_ONEBIT_EXPORT(Rule)                                                                      \
  HWY_EXPORT(Rule##_at);                                                                                 \
  template <>                                                                                            \
  struct ApplyAt<step_rules::Rule> {                                                                     \
    static optimizers::LayerSums run(const step_rules::Rule& rule, std::size_t begin, std::size_t end) { \
      return HWY_DYNAMIC_DISPATCH(Rule##_at)(&rule, begin, end);                                         \
    }                                                                                                    \
  };
CAPSTAN_ONEBIT_RULES(CAPSTAN_ONEBIT_EXPORT)
#undef CAPSTAN_ONEBIT_EXPORT

}  // namespace capstan::elements

#include "plugins/optimizers/onebit/compression_kernels.hpp"
#include "plugins/optimizers/onebit/compression_rule.hpp"
#include "plugins/optimizers/onebit/step_kernels.hpp"
#include "plugins/optimizers/onebit/units.hpp"

namespace capstan::optimizers {
namespace {

/// Applies rules to host memory, on LibTorch's threads where there is enough to do. Sums are made over fixed units, in
/// their order.
class HostLaunch {
 public:
  template <class Rule>
  void each(std::size_t count, const Rule& rule) {
    for_units(count, [&](std::size_t begin, std::size_t end) { ApplyAt<Rule>::run(rule, begin, end); });
  }
  template <class Rule>
  void add_up(std::size_t count, const Rule& rule, double* out) {
    LayerSums sums;
    total(count, rule, &sums);
    if (out) *out += sums.weights;  // sum 0, the rule's only one
  }
  template <class Rule>
  void total(std::size_t count, const Rule& rule, LayerSums* out) {
    std::vector<LayerSums> units(host_units_of(count));
    for_units(count, [&](std::size_t begin, std::size_t end) {
      units[begin / kUnitElements] = ApplyAt<Rule>::run(rule, begin, end);
    });
    *out = {};
    for (const LayerSums& unit : units) out->add(unit);
  }
  void zero(void* to, std::size_t bytes) {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void upload(const void* host, std::size_t bytes, void* to) {
    if (bytes > 0) std::memcpy(to, host, bytes);
  }
  void download(const void* from, std::size_t bytes, void* host) { upload(from, bytes, host); }
};

class HostKernels final : public StepKernels<HostLaunch> {
 public:
  void mask(const std::uint8_t* keep, std::size_t run, std::size_t count, float* values) override {
    for (std::size_t i = 0; i * run < count; ++i) {
      if (keep[i] == 0) std::fill_n(values + i * run, run, 0.0f);
    }
  }

  void compress(const std::vector<OutgoingShare>& shares) override {
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

  void serve(const std::vector<ArrivedShare>& shares) override {
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

  void expand(const ArrivedBuffer& buffer, std::size_t begin, std::size_t count, float* out) override {
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
};

}  // namespace

std::unique_ptr<Kernels> host_kernels() { return std::make_unique<HostKernels>(); }

BlockKernel adaptive_kernel() { return KernelOf<AdaptiveRule>::kKernel; }

}  // namespace capstan::optimizers
#endif
