#pragma once

#include <memory>
#include <string>

#include "core/parameters/shared_home.hpp"

namespace capstan {

/// The home at ZeRO stage 3: each rank has its part alone, and parameters come and go as operators use them, but for
/// those that stay.
class PartitionedHome final : public SharedHome {
 public:
  PartitionedHome(Sharding& sharding, const ResidencyLimits& limits) : SharedHome(sharding), limits_(limits) {}

  void attach(Parameters parameters) override;
  void begin() override { residency_->drop(); }
  bool parts_only() const override { return true; }
  bool stays(std::size_t i) const override { return residency_->stays(i); }
  bool sends_codes() const override { return ranks() > 1; }
  void set_scales(std::size_t i, std::optional<PartScales> scales) override;
  OperatorPolicy* operator_policy() override { return residency_.get(); }
  void begin_forward(const std::string& step, Pass pass) override;
  void end_forward(Pass pass) override;
  void end_backward() override { residency_->end_pass(); }
  void settle() override { residency_->settle(); }
  void share(const std::string& step) override;
  void hold(const std::vector<std::size_t>& parameters) override { residency_->hold(parameters); }
  void let_go(const std::vector<std::size_t>& parameters) override { residency_->let_go(parameters); }
  Range frozen_part(std::size_t k) const override { return sharding_.frozen_part(k); }
  at::Tensor frozen_values(std::size_t k) const override { return sharding_.frozen().part(k); }
  void set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill) override;

 private:
  ResidencyLimits limits_;
  std::unique_ptr<ParameterResidency> residency_;
};

}  // namespace capstan
