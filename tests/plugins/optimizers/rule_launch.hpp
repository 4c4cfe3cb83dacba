#pragma once

#include <memory>

#include "capstan/sdk/floats.hpp"
#include "plugins/optimizers/onebit/rule_kernels.hpp"

namespace capstan::testing {

/// Applies rules to host memory one index after the other, and adds up in the order that GPUs keep to.
class RuleLaunch {
 public:
  class Gradient {
   public:
    explicit Gradient(const optimizers::DeviceValues& values)
        : values_{values.data, values.type == optimizers::ElementType::kFloat32    ? sdk::Dtype::kFloat32
                               : values.type == optimizers::ElementType::kBFloat16 ? sdk::Dtype::kBFloat16
                                                                                   : sdk::Dtype::kFloat16} {}
    float operator()(std::size_t i) const { return sdk::value_at(values_, i); }

   private:
    sdk::Values values_;
  };

  template <class Body>
  void each(std::size_t count, const Body& body) {
    for (std::size_t i = count; i-- > 0;) body(i);  // no order is promised
  }
  template <class Body>
  void each_of(const std::vector<std::size_t>& counts, const Body& body) {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      each(counts[k], [&](std::size_t i) { body(k, i); });
    }
  }
  template <class Body>
  void add_up(std::size_t count, const Body& body, double* out) {
    const auto sum = total_of_units<optimizers::Total>(count, body);
    if (out) *out += sum.value;
  }
  template <class Body>
  void total(std::size_t count, const Body& body, optimizers::LayerSums* out) {
    *out = total_of_units<optimizers::LayerSums>(count, body);
  }
  template <class Body>
  void total_of(const std::vector<std::size_t>& counts, const Body& body) {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      body.put_total(k, total_of_units<optimizers::Total>(counts[k], [&](std::size_t i) { return body(k, i); }));
    }
  }

  template <class Item>
  const Item* table(const std::vector<Item>& items) {
    table_ = std::make_shared<std::vector<Item>>(items);
    return static_cast<const std::vector<Item>*>(table_.get())->data();
  }
  float* floats(std::size_t count) {
    floats_.assign(count, 0.0f);
    return floats_.data();
  }
  void zero(void* to, std::size_t bytes) {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void upload(const void* host, std::size_t bytes, void* to) {
    if (bytes > 0) std::memcpy(to, host, bytes);
  }
  void download(const void* from, std::size_t bytes, void* host) { upload(from, bytes, host); }

 private:
  template <class Sum, class At>
  static Sum unit(std::size_t begin, std::size_t end, const At& at) {
    std::vector<Sum> sums;
    for (std::size_t thread = 0; thread < optimizers::kSumThreads; ++thread) {
      sums.push_back(optimizers::sum_of_thread<Sum>(begin, end, thread, at));
    }
    for (std::size_t width = optimizers::kSumThreads / 2; width > 0; width /= 2) {
      for (std::size_t thread = 0; thread < optimizers::kSumThreads; ++thread) {
        optimizers::fold(sums.data(), thread, width);
      }
    }
    return sums[0];
  }
  template <class Sum, class Body>
  static Sum total_of_units(std::size_t count, const Body& body) {
    std::vector<Sum> units;
    for (std::size_t begin = 0; begin < count; begin += optimizers::kSumUnit) {
      units.push_back(unit<Sum>(begin, std::min(begin + optimizers::kSumUnit, count), body));
    }
    return unit<Sum>(0, units.size(), [&](std::size_t i) { return units[i]; });
  }

  std::shared_ptr<void> table_;
  std::vector<float> floats_;
};

using RuleKernelsOnHost = optimizers::RuleKernels<RuleLaunch>;

}  // namespace capstan::testing
