#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tests/plugins/plugin_host.hpp"

namespace capstan::testing {

/// A float32 tensor of these values.
at::Tensor tensor_of(const std::vector<double>& values);
std::vector<double> values_of(const at::Tensor& tensor);
/// `count` values between -1 and 1 that look random, always the same for a seed.
at::Tensor noise(std::int64_t count, std::uint64_t seed);

/// One slot and its storage.
struct TestSlot {
  std::string name;
  std::uint32_t group = 0;
  at::Tensor param, grad, compute;  // compute: undefined for none
  std::vector<at::Tensor> state;    // the manifest's states; one that is off is undefined
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0, full_numel = 0;
  int compute_written = 0;
  bool sparse = false;             // the gradient has come sparse, with
  std::vector<std::int64_t> rows;  // these rows
};

/// An optimizer plugin with slots, groups and states as the engine would make them.
class OptimizerUnderTest {
 public:
  /// Slots and states are moved to `device`, but for scalars.
  explicit OptimizerUnderTest(std::string_view plugin, std::string_view type, const Json& params = Json::object(),
                              Seat seat = {}, at::Device device = at::kCPU);

  /// Adds a parameter; its states are made as the manifest says. `state_dtype` replaces float32 where given.
  TestSlot& add(at::Tensor param, std::uint32_t group = 0, at::ScalarType state_dtype = at::kFloat,
                const std::string& name = "");
  /// Adds part of a parameter of `full_numel` elements.
  TestSlot& add_part(at::Tensor param, std::uint64_t offset, std::uint64_t full_numel);
  /// A further group: the parameters of the section with these changes.
  void add_group(const Json& changes);
  Json& group(std::size_t index) { return groups_[index].numbers; }

  TestSlot& slot(std::size_t index) { return slots_[index]; }
  std::size_t size() const { return slots_.size(); }
  at::Tensor state(std::size_t slot, std::string_view name) const;

  /// measure (where there is one), the sum of its partials over slots of the same name, and update.
  void update(double grad_scale = 1.0);
  const std::vector<double>& totals() const { return totals_; }  // totals of the last update
  /// What the next update wants: true for this rank's own gradients.
  bool wants_local_gradients();
  void synchronize();
  /// What save() wrote, and taking it over with the tensors of another: a run that is resumed.
  std::string save();
  void load(const std::string& saved);
  void resume_from(OptimizerUnderTest& other);
  void drop_last() { slots_.pop_back(); }
  /// A state of the whole model.
  at::Tensor model_state(std::string_view name);

  PluginComponent component;

 private:
  /// Runs call(slots, step, error) with everything pointing to what is here.
  template <class Call>
  void with_slots(double grad_scale, const Call& call);
  void make_model_states();

  at::Device device_;
  std::map<std::string, at::Tensor, std::less<>> model_states_;
  std::deque<TestSlot> slots_;
  std::deque<capstan_group> groups_;
  std::vector<double> totals_;
  std::int64_t update_index_ = 0;
};

}  // namespace capstan::testing
