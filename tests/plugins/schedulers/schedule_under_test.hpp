#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/plugins/plugin_host.hpp"

namespace capstan::testing {

/// A scheduler plugin, started with these base rates (one a group).
class ScheduleUnderTest {
 public:
  using Betas = std::pair<double, double>;

  ScheduleUnderTest(std::string_view plugin, std::string_view type, std::string_view params,
                    std::vector<double> base_lrs = {0.01}, std::optional<Betas> betas = Betas{0.9, 0.999})
      : component("scheduler", plugin, type, Json::parse(params)), base_lrs_(std::move(base_lrs)), betas_(betas) {
    const auto& vtable = component.vtable<capstan_scheduler>();
    if (vtable.start == nullptr) return;
    const double configured[] = {betas ? betas->first : 0, betas ? betas->second : 0};
    const capstan_schedule_start start{sizeof start, static_cast<std::uint32_t>(base_lrs_.size()), base_lrs_.data(),
                                       betas.has_value(), betas ? configured : nullptr};
    expect_ok([&](capstan_error* error) { return vtable.start(component.self(), &start, error); });
  }

  /// The rate that update `index` runs at.
  double rate(std::int64_t index, std::uint32_t group = 0) const {
    double rate = 0;
    expect_ok([&](capstan_error* error) {
      return component.vtable<capstan_scheduler>().rate(component.self(), index, group, base_lrs_[group], &rate, error);
    });
    return rate;
  }
  /// The rate at iteration k of the sheets' tables: that of update k + 1.
  double at(std::int64_t k) const { return rate(k + 1); }

  Betas betas(std::int64_t index, std::uint32_t group = 0) const {
    double betas[] = {betas_->first, betas_->second};
    const auto momentum = component.vtable<capstan_scheduler>().momentum;
    if (momentum != nullptr) {
      expect_ok([&](capstan_error* error) { return momentum(component.self(), index, group, betas, error); });
    }
    return {betas[0], betas[1]};
  }

  PluginComponent component;

 private:
  std::vector<double> base_lrs_;
  std::optional<Betas> betas_;
};

}  // namespace capstan::testing
