#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/config/config.hpp"
#include "core/engine/model.hpp"
#include "core/engine/parameter_groups.hpp"
#include "core/memory/accelerator.hpp"
#include "core/memory/state_offload.hpp"
#include "core/registry/manifest.hpp"

namespace capstan {

/// All that belongs to one trainable parameter: the compute copy that the model uses, the master values that the
/// optimizer updates, the gradient, the optimizer's state. Master and compute copy are one tensor unless something
/// separates them: another dtype, a weight transform, a layout that is not contiguous.
struct ParameterEntry {
  std::string name;
  at::Tensor parameter;           // the model's own
  at::Tensor master;              // float32, contiguous, no autograd
  at::Tensor compute;             // alias of the parameter's values, no autograd
  bool separate = false;          // master and compute copy have storages of their own
  int transform = -1;             // index of the observer that fills the compute copy; -1: a plain cast
  at::Tensor accumulated;         // gradient sum over micro-batches where its dtype is not the parameter's
  std::vector<at::Tensor> state;  // manifest order; undefined where a parameter switches it off
  std::vector<std::int64_t> shape;
  std::uint32_t group = 0;
  const void* storage = nullptr;  // of the parameter when the store was built

  /// The gradient as it stands: undefined when this step gave none.
  at::Tensor& gradient() { return accumulated.defined() ? accumulated : parameter.mutable_grad(); }
};

/// A run of entries that is updated together: acquired, updated, released.
struct SubGroup {
  std::size_t begin = 0, end = 0;
};

/// Fills a compute copy from its master: a weight transform of an observer.
using TransformWeight = std::function<void(const ParameterEntry&)>;

/// Holds master values, compute copies, gradients and optimizer states of a model's trainable parameters. [engine]
class ParameterStore {
 public:
  struct Options {
    at::ScalarType compute_dtype = at::kFloat;
    at::ScalarType accumulation_dtype = at::kFloat;
    std::int64_t sub_group_size = 1'000'000'000;              // elements
    std::function<int(const NamedTensor&)> select_transform;  // -1: none
    std::vector<StateSpec> states;                            // of the optimizer's manifest
    std::function<at::ScalarType(const StateSpec&)> state_dtype;
    std::unique_ptr<StateOffload> offload;  // null: states stay in memory
  };

  /// Casts the model's floating parameters to the compute dtype. Throws RuntimeFault for parameters that cannot be
  /// trained (complex, sparse, on another device).
  ParameterStore(const std::vector<NamedTensor>& parameters, const ParameterGroups& groups,
                 const Accelerator& accelerator, Options options);

  std::vector<ParameterEntry>& entries() { return entries_; }
  const std::vector<SubGroup>& sub_groups() const { return sub_groups_; }
  const std::vector<StateSpec>& states() const { return options_.states; }
  const std::vector<capstan_tensor>& model_state() const { return model_state_handles_; }
  std::vector<at::Tensor>& model_state_tensors() { return model_state_; }

  /// Adds the parameters' gradients to the accumulation buffers, where there are any.
  void accumulate_gradients();
  /// Entries that got a gradient in this step, as contiguous tensors. Throws RuntimeFault when a parameter's storage
  /// was exchanged behind the engine's back.
  const std::vector<const at::Tensor*>& collect_gradients();
  /// Slots of a sub-group's entries that have a gradient; valid until the next call of collect_gradients.
  const std::vector<const capstan_slot*>& slots(const SubGroup& sub_group);
  void drop_gradients();

  /// Makes the states of a sub-group resident / gives their memory back.
  void acquire(const SubGroup& sub_group);
  void release(const SubGroup& sub_group, bool changed);
  /// Brings compute copies up to date with their masters, where the optimizer has not written them itself.
  void refresh(const SubGroup& sub_group, const TransformWeight& transform);
  /// All compute copies, after masters were loaded.
  void refresh_all(const TransformWeight& transform);

 private:
  void build_entry(const NamedTensor& parameter, std::uint32_t group);
  void build_sub_groups();
  void build_states(const ParameterGroups& groups);
  void build_slots();
  void refresh_entry(std::size_t index, const TransformWeight& transform);

  const Accelerator& accelerator_;
  Options options_;
  std::vector<ParameterEntry> entries_;
  std::vector<SubGroup> sub_groups_;
  std::vector<at::Tensor> model_state_;
  std::vector<capstan_tensor> model_state_handles_;
  std::vector<std::vector<capstan_tensor>> state_handles_;
  std::vector<capstan_slot> slots_;            // one an entry, filled once
  std::vector<int> compute_written_;           // one an entry
  std::vector<const at::Tensor*> gradients_;   // of the current step; null: none
  std::vector<const at::Tensor*> present_;     // those that are not null
  std::vector<at::Tensor> contiguous_copies_;  // of gradients that are not contiguous
  std::vector<const capstan_slot*> slot_list_;
};

}  // namespace capstan
