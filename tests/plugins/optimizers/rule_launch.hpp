#pragma once

#include <memory>

#include "capstan/sdk/floats.hpp"
#include "plugins/optimizers/onebit/rule_kernels.hpp"

namespace capstan::testing {

/// Applies rules to host memory one index after the other, and adds up in the order that GPUs keep to.
class RuleLaunch {
 public:
  struct At {
    using Value = float;
    std::size_t i;
    float operator()(const float* array) const { return array[i]; }
    float operator()(const optimizers::DeviceValues& values) const {
      const sdk::Dtype dtype = values.type == optimizers::ElementType::kFloat32    ? sdk::Dtype::kFloat32
                               : values.type == optimizers::ElementType::kBFloat16 ? sdk::Dtype::kBFloat16
                                                                                   : sdk::Dtype::kFloat16;
      return sdk::value_at({values.data, dtype}, i);
    }
    void put(float* array, float value) const { array[i] = value; }
  };

  template <class Rule>
  void each(std::size_t count, const Rule& rule) {
    each_index(count, [&](std::size_t i) { rule(At{i}); });
  }
  template <class Body>
  void each_index(std::size_t count, const Body& body) {
    for (std::size_t i = count; i-- > 0;) body(i);  // no order is promised
  }
  template <class Body>
  void each_of(const std::vector<std::size_t>& counts, const Body& body) {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      each_index(counts[k], [&](std::size_t i) { body(k, i); });
    }
  }
  template <class Rule>
  void add_up(std::size_t count, const Rule& rule, double* out) {
    const auto sum = total_of_units<optimizers::Total>(count, [&](std::size_t i, auto& sums) { rule(At{i}, sums); });
    if (out) *out += sum.value;
  }
  template <class Rule>
  void total(std::size_t count, const Rule& rule, optimizers::LayerSums* out) {
    *out = total_of_units<optimizers::LayerSums>(count, [&](std::size_t i, auto& sums) { rule(At{i}, sums); });
  }
  template <class Body>
  void total_of(const std::vector<std::size_t>& counts, const Body& body) {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      body.put_total(k, total_of_units<optimizers::Total>(
                            counts[k], [&](std::size_t i, optimizers::Total& sum) { body(k, i, sum); }));
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
  template <class Sum, class Add>
  static Sum unit(std::size_t begin, std::size_t end, const Add& add) {
    std::vector<Sum> sums;
    for (std::size_t thread = 0; thread < optimizers::kSumThreads; ++thread) {
      sums.push_back(optimizers::sum_of_thread<Sum>(begin, end, thread, add));
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
    return unit<Sum>(0, units.size(), [&](std::size_t i, Sum& sum) { sum.add(units[i]); });
  }

  std::shared_ptr<void> table_;
  std::vector<float> floats_;
};

using RuleKernelsOnHost = optimizers::RuleKernels<RuleLaunch>;

}  // namespace capstan::testing
