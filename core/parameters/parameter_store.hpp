#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/config/config.hpp"
#include "core/memory/accelerator.hpp"
#include "core/memory/deferred_values.hpp"
#include "core/memory/residency.hpp"
#include "core/model/model.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/parameters/sub_group_tier.hpp"
#include "core/registry/manifest.hpp"
#include "core/zero/sharding.hpp"

namespace capstan {

/// All that belongs to one trainable parameter: the compute copy that the model uses, the master values that the
/// optimizer updates, the gradient, the optimizer's state. Master and compute copy are one tensor unless something
/// separates them: another dtype, a weight transform, a layout that is not contiguous.
///
/// Where the optimizer's state is partitioned over ranks, master and state are those of this rank's part. At stage 3
/// the values of parameter and compute are away between their uses.
struct ParameterEntry {
  std::string name;
  at::Tensor parameter;           // the model's own
  at::Tensor master;              // float32, contiguous, no autograd; of a part: one dimension
  std::int64_t offset = 0;        // where the part begins, in elements; 0 for a whole parameter
  at::Tensor compute;             // alias of the parameter's values, no autograd
  bool separate = false;          // master and compute copy have storages of their own
  int transform = -1;             // index of the observer that fills the compute copy; -1: a plain cast
  at::Tensor accumulated;         // gradient sum over micro-batches where its dtype is not the parameter's
  at::Tensor reduced;             // several processes: the mean gradient of the part, in a step that has one
  at::Tensor compute_part;        // the part of the compute copy, where it is not the master itself
  std::vector<at::Tensor> state;  // manifest order; undefined where a parameter switches it off
  std::vector<std::int64_t> shape;
  std::uint32_t group = 0;
  capstan_param_role role = CAPSTAN_PARAM_OTHER;
  const void* storage = nullptr;  // the parameter's storage when the store was built

  /// The gradient as it stands: undefined when this step gave none.
  at::Tensor& gradient() {
    if (reduced.defined()) return reduced;
    return accumulated.defined() ? accumulated : parameter.mutable_grad();
  }
};

/// A run of entries that is updated together: acquired, updated, released.
struct SubGroup {
  std::size_t begin = 0, end = 0;
  std::size_t index = 0;  // among the store's sub-groups
};

/// Fills a compute copy from its master: a weight transform of an observer.
using TransformWeight = std::function<void(const ParameterEntry&)>;

/// Holds master values, compute copies, gradients and optimizer states of a model's trainable parameters. [engine]
class ParameterStore {
 public:
  struct Options {
    at::ScalarType compute_dtype = at::kFloat;
    std::function<bool(const NamedTensor&)> stays_fp32;  // whatever the compute type is; null: none
    bool round_masters = false;                          // masters hold values of the compute type
    at::ScalarType accumulation_dtype = at::kFloat;
    std::int64_t sub_group_size = 1'000'000'000;              // elements
    std::function<int(const NamedTensor&)> select_transform;  // -1: none
    std::vector<StateSpec> states;                            // the states that the optimizer's manifest declares
    std::function<at::ScalarType(const StateSpec&)> state_dtype;
    bool sparse_gradients = false;            // gradients may come as sparse tensors
    bool sparse_rows = false;                 // stage 0: the optimizer takes the rows that sparse gradients have
    std::unique_ptr<SubGroupTier> tier;       // where states stay between updates; null: in the device's memory
    std::optional<ShardingOptions> sharding;  // how processes train that hold parts; absent: one holds everything
    bool every_slot = false;                  // several processes: slots also for what has no gradient, or no part here
    ResidencyLimits residency;                // stage 3, as all that follows
    std::int64_t persistent_max_elements = 100'000;      // elements of the largest persistent parameter
    std::int64_t persistent_total_elements = INT64_MAX;  // elements of all persistent parameters together
    bool frozen_as_int8 = false;                         // frozen parameters are kept as 8-bit codes
    std::shared_ptr<DeferredValues> deferred;            // the values that the model lacks as yet; null: it has all
  };

  /// Casts the model's floating parameters to the compute dtype. Throws RuntimeFault for parameters that cannot be
  /// trained (complex, sparse, on another device).
  ParameterStore(const std::vector<NamedTensor>& parameters, const ParameterGroups& groups,
                 const Accelerator& accelerator, Options options);

  std::vector<ParameterEntry>& entries() { return entries_; }
  /// Stage 3, with one process where parameters are offloaded: this rank holds parts of parameters.
  bool parts_only() const { return sharding_ && sharding_->parts_only(); }
  /// Floating-point parameters that are not trained, in the model's order; the tensors are aliases of their values.
  const std::vector<NamedTensor>& frozen() const { return frozen_; }
  /// What this rank holds of frozen parameter k: at stage 3 a part, else all of it.
  Range frozen_part(std::size_t k) const;
  /// That part in the compute type, one dimension.
  at::Tensor frozen_values(std::size_t k);
  /// Gives frozen parameter k other values: calls `fill(to, offset)` for each run of elements that is kept here.
  void set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill);
  const std::vector<SubGroup>& sub_groups() const { return sub_groups_; }
  const std::vector<StateSpec>& states() const { return options_.states; }
  /// Calls `use(spec, values)` for each state that an entry has, in manifest order. Not for those of the whole model,
  /// nor for what the entry's group switches off.
  template <class Use>
  void for_each_state(ParameterEntry& entry, Use use) const {
    std::size_t index = 0;
    for (const StateSpec& spec : states()) {
      if (spec.extent == StateSpec::Extent::kModel) continue;
      at::Tensor& values = entry.state[index++];
      if (values.defined()) use(spec, values);
    }
  }
  const std::vector<capstan_tensor>& model_state() const { return model_state_handles_; }
  std::vector<at::Tensor>& model_state_tensors() { return model_state_; }

  /// Null in a single process that holds everything.
  Sharding* sharding() { return sharding_.get(); }
  /// Brings the parameters that operators use; null while all are here to stay.
  OperatorPolicy* operator_policy();
  /// Waits until no other thread exchanges anything with the ranks. Throws RuntimeFault.
  void settle();
  /// The same after an exception: gives up what of the step has failed, and returns why ("": nothing has). Parameters
  /// that were to come are brought at their next use, or at stages 1 and 2 by the next share() alone.
  std::string give_up_what_failed();
  /// Called around the forward of a micro-batch. The pass of one that trains ends with end_backward.
  void begin_forward(const std::string& step, ParameterResidency::Pass pass);
  void end_forward(ParameterResidency::Pass pass);
  /// Called around the backward of a micro-batch: adds up its gradients and, in several processes, averages them over
  /// the ranks, unless the step is `local`. `step` names it, "step 12"; `last`: the last micro-batch of its step.
  void begin_backward(const std::string& step, bool last, bool local);
  void end_backward();
  /// Several processes: the parameters that some rank has a gradient of in this step.
  void set_present(const std::vector<std::uint8_t>& present);
  /// What this rank saves of parameter i: all of it in a single process.
  Range saved_part(std::size_t i) const;
  /// The sum of what each rank gives, where ranks hold parts; else the value itself. `name` says what is summed.
  double sum_over_ranks(const std::string& name, double value);
  /// Whether parameter i has a gradient in this step, on any rank; after collect_gradients.
  bool has_gradient(std::size_t i) const;
  /// Adds up what an optimizer measured: `width` numbers for each block of each slot of the sub-group. Returns `width`
  /// totals a slot, over all ranks.
  std::vector<double> sum_measures(const std::string& name, const SubGroup& sub_group,
                                   const std::vector<double>& per_block, std::size_t width);
  /// The same over the whole model: `per_block` of the slots of all sub-groups, in their order. Returns `width` totals,
  /// the same bits on all ranks and at all stages.
  std::vector<double> sum_model_measures(const std::string& name, const std::vector<double>& per_block,
                                         std::size_t width);
  /// Entries that got a gradient in this step, as contiguous tensors. Throws RuntimeFault when a parameter's storage
  /// was exchanged behind the engine's back.
  const std::vector<const at::Tensor*>& collect_gradients();
  /// Slots of a sub-group's entries that have a gradient; valid until the next call of collect_gradients.
  const std::vector<const capstan_slot*>& slots(const SubGroup& sub_group);
  /// The slots of all entries, without gradients.
  const std::vector<const capstan_slot*>& slots_without_gradients();
  /// Forgets the gradients of a step, and unless they were `applied` also what quantisation has lost of them. Called at
  /// the end of the step, or after settle() at any time, also after an exception out of forward or backward.
  void drop_gradients(bool applied);

  /// Before the first update: states declared with init = "param" become the master values.
  void start_states();
  /// Makes the states of a sub-group resident.
  void acquire(const SubGroup& sub_group) { options_.tier->acquire(sub_group.index); }
  /// Ends the residence of the states; `changed`: their values are kept, else the earlier ones.
  void release(const SubGroup& sub_group, bool changed) { options_.tier->release(sub_group.index, changed); }
  /// Whether the states of a released sub-group can still be read.
  bool readable_after_release() const { return options_.tier->readable_after_release(); }
  /// Brings compute copies up to date with their masters, where the optimizer has not written them itself.
  void refresh(const SubGroup& sub_group, const TransformWeight& transform);
  /// Called after all sub-groups: where ranks update parts, every rank gets every part. `step` names the step.
  void share(const std::string& step, const TransformWeight& transform);
  /// Keeps the values of parameters (of entries(), and after them of frozen()) in memory, for code that uses no
  /// operators / lets them leave again.
  void hold(const std::vector<std::size_t>& parameters);
  void let_go(const std::vector<std::size_t>& parameters);
  /// Makes the values that rank `root` has in its compute copies, which are held, those of all ranks and masters.
  void take_values(const std::vector<std::size_t>& parameters, int root);
  /// All compute copies, after masters were loaded.
  void refresh_all(const TransformWeight& transform);

 private:
  void build_sharding(const std::vector<NamedTensor>& parameters);
  void build_entry(const NamedTensor& parameter, std::uint32_t group);
  void attach_sharding(const std::vector<NamedTensor>& parameters);
  std::vector<bool> staying() const;
  void build_residency(const std::vector<bool>& stays, const std::vector<bool>& movable_frozen);
  void make_deferred_values();
  bool take_deferred(const c10::Storage& storage);
  void share_what_stays(const std::string& step, const TransformWeight& transform);
  void transform_whole(const std::string& step, std::size_t index, const TransformWeight& transform);
  void cut_entry(std::size_t index, const at::Tensor& full_values, bool deferred);
  void build_sub_groups();
  void build_states(const ParameterGroups& groups);
  void build_states(ParameterEntry& entry, const ParameterGroups& groups);
  void build_model_state();
  std::uint64_t state_bytes(const SubGroup& sub_group, const ParameterGroups& groups) const;
  void build_slots();
  void refresh_entry(std::size_t index, const TransformWeight& transform);
  std::vector<double> totals_of_entries(const std::string& name, const SubGroup& range,
                                        const std::vector<double>& per_block, std::size_t width);
  bool has_state(const StateSpec& spec, const ParameterEntry& entry, const ParameterGroups& groups) const;
  bool partitioned() const { return sharding_ && sharding_->partitioned(); }
  /// Null where the optimizer takes no rows.
  const SparseRows* sparse_rows() const;

  /// A parameter whose values are still to be made.
  struct Deferred {
    at::Tensor original;    // as the model made it
    at::Tensor parameter;   // the same, or of the compute type
    std::size_t index = 0;  // counts entries(), after them frozen()
    bool frozen = false;
  };

  const Accelerator& accelerator_;
  Options options_;
  std::unique_ptr<Sharding> sharding_;
  std::unique_ptr<ParameterResidency> residency_;
  std::vector<std::uint8_t> present_on_any_;  // one an entry
  std::optional<SparseRows> rows_;            // a single process: the rows of sparse gradients, where they are taken
  std::vector<Deferred> deferred_;            // while the store is built
  std::vector<ParameterEntry> entries_;
  std::vector<NamedTensor> frozen_;
  std::vector<SubGroup> sub_groups_;
  std::vector<at::Tensor> model_state_;
  std::vector<capstan_tensor> model_state_handles_;
  std::vector<std::vector<capstan_tensor>> state_handles_;
  std::vector<capstan_slot> slots_;            // one an entry, filled once
  std::vector<int> compute_written_;           // one an entry
  std::vector<const at::Tensor*> gradients_;   // the current step's, one an entry; null: it has none
  std::vector<const at::Tensor*> present_;     // the gradients that are not null
  std::vector<at::Tensor> contiguous_copies_;  // stand in for gradients that are not contiguous
  std::vector<const capstan_slot*> slot_list_;
};

}  // namespace capstan
