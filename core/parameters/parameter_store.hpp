#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"
#include "core/config/config.hpp"
#include "core/memory/accelerator.hpp"
#include "core/memory/deferred_values.hpp"
#include "core/memory/residency.hpp"
#include "core/model/model.hpp"
#include "core/parameters/compressed_part.hpp"
#include "core/parameters/early_gradients.hpp"
#include "core/parameters/offload_options.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/parameters/parameter_home.hpp"
#include "core/parameters/step_gradients.hpp"
#include "core/parameters/stored_parts.hpp"
#include "core/parameters/tile_staging.hpp"
#include "core/parameters/tiles.hpp"
#include "core/registry/manifest.hpp"
#include "core/zero/offload_plan.hpp"
#include "core/zero/sharding.hpp"

namespace capstan {

/// All that belongs to one trainable parameter: the compute copy that the model uses, the master values that the
/// optimizer updates, the gradient, the optimizer's state. Master and compute copy are one tensor unless something
/// separates them: another dtype, a compression, a layout that is not contiguous, an update in host memory.
///
/// Where the optimizer's state is partitioned over ranks, master and state are those of this rank's part. At stage 3
/// the values of parameter and compute are remote between their uses.
struct ParameterEntry {
  std::string name;
  at::Tensor parameter;     // the model's own
  at::Tensor master;        // float32, or of 16 bits as it is kept; contiguous, no autograd; of a part: one dimension.
                            // On the meta device where the values are on a store: see ParameterStore::visit_master()
  std::int64_t offset = 0;  // where the part begins, in elements; 0 for a whole parameter
  at::Tensor compute;       // alias of the parameter's values, no autograd
  bool separate = false;    // master and compute copy have storages of their own
  bool compressed = false;  // compressions fill the compute copy, or the part of it
  at::Tensor compute_part;  // the part of the compute copy, where it is not the master itself
  std::vector<std::int64_t> shape;
  std::uint32_t group = 0;
  capstan_param_role role = CAPSTAN_PARAM_OTHER;
  const void* storage = nullptr;  // the parameter's storage when the store was built
};

/// A run of an entry's elements that is updated at once: all of what this rank updates, or less where its states are on
/// a store. The tensors show values between acquire() and release() of the piece's sub-group.
///
/// Masters and states that are kept in 16 bits are shown in fp32: acquire() widens them into memory that all pieces
/// share, release() rounds what has changed.
struct Piece {
  std::size_t entry = 0;
  std::int64_t offset = 0, numel = 0;  // in elements, of what this rank updates
  at::Tensor master;                   // float32, contiguous
  at::Tensor compute;                  // the compute copy's elements, one dimension; undefined where they are none
                                       // beside the master, or not contiguous. Where updates are made in host memory:
                                       // a 16-bit copy there, for the optimizer to write
  at::Tensor on_device;                // and then the compute copy's elements, on the device; undefined: not contiguous
  at::Tensor gradient;                 // one dimension, where gradients are on a store
  std::vector<at::Tensor> state;       // manifest order; undefined where a parameter switches it off
  at::Tensor kept_master;              // one dimension; undefined: `master` is what is kept
  std::vector<at::Tensor> kept_state;  // likewise
};

/// A run of pieces that is updated together: acquired, updated, released.
struct SubGroup {
  std::size_t begin = 0, end = 0;
  std::size_t index = 0;  // among the store's sub-groups
};

/// Holds master values, compute copies, gradients and optimizer states of a model's trainable parameters. [engine]
class ParameterStore {
 public:
  struct Options {
    at::ScalarType compute_dtype = at::kFloat;
    std::function<bool(const NamedTensor&)> stays_fp32;  // whatever the compute type is; null: none
    bool round_masters = false;                          // masters hold values of the compute type
    /// Masters are kept in the compute type, except those of compressed parameters and of trained states of
    /// compressions: the compute copy is the master wherever it can be.
    bool low_precision_masters = false;
    /// What updates of masters and states of 16 bits are rounded by at random; absent: they are rounded to the nearest.
    std::optional<std::uint64_t> rounding_seed;
    bool updates_on_host = false;  // a device trains; masters, states, slots are in host memory
    at::ScalarType accumulation_dtype = at::kFloat;
    std::int64_t sub_group_size = 1'000'000'000;         // elements
    std::function<bool(const NamedTensor&)> compressed;  // whether `compress` fills the compute copy; null: none
    CompressParts compress;
    /// The parameter of which this one is a trained state of a compression; empty: it is none. null: none is.
    std::function<std::string(const NamedTensor&)> trained_state_of;
    std::vector<StateSpec> states;  // the states that the optimizer's manifest declares
    std::function<at::ScalarType(const StateSpec&)> state_dtype;
    /// Whether a state that is kept in 16 bits is shown to the optimizer in fp32; null: no state is.
    std::function<bool(const StateSpec&)> widens;
    bool sparse_gradients = false;            // gradients may come as sparse tensors
    bool sparse_rows = false;                 // stage 0: the optimizer takes the rows that sparse gradients have
    OffloadOptions offload;                   // what is kept on stores
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
  bool parts_only() const { return home_->parts_only(); }
  /// Floating-point parameters that are not trained, in the model's order; the tensors are aliases of their values.
  const std::vector<NamedTensor>& frozen() const { return frozen_; }
  /// What this rank holds of frozen parameter k: at stage 3 a part, else all of it.
  Range frozen_part(std::size_t k) const { return home_->frozen_part(k); }
  /// That part in the compute type, one dimension.
  at::Tensor frozen_values(std::size_t k) const { return home_->frozen_values(k); }
  /// Gives frozen parameter k other values: calls `fill(to, offset)` for each run of elements that is kept here.
  void set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill);
  const std::vector<SubGroup>& sub_groups() const { return sub_groups_; }
  const std::vector<StateSpec>& states() const { return options_.states; }
  /// The pieces of a sub-group, in the order of entries.
  std::span<Piece> pieces(const SubGroup& sub_group) {
    return {pieces_.data() + sub_group.begin, sub_group.end - sub_group.begin};
  }
  std::span<Piece> pieces() { return pieces_; }
  const Piece& first_piece(std::size_t entry) const { return pieces_[first_piece_[entry]]; }
  /// Calls `use(spec, values)` for each state that a piece has, in manifest order. Not for those of the whole model,
  /// nor for what the entry's group switches off.
  template <class Use>
  void for_each_state(Piece& piece, Use use) const {
    std::size_t index = 0;
    for (const StateSpec& spec : states()) {
      if (spec.extent == StateSpec::Extent::kModel) continue;
      at::Tensor& values = piece.state[index++];
      if (values.defined()) use(spec, values);
    }
  }
  /// Takes the master of a piece, of one dimension: the elements from `offset` on of what this rank updates of an
  /// entry.
  using VisitMaster = std::function<void(std::size_t entry, at::Tensor master, std::int64_t offset)>;
  /// Calls `use` for one piece after the other of entry i, wherever it is kept; `changes`: `use` changes the values.
  void visit_master(std::size_t i, bool changes, const VisitMaster& use);
  const std::vector<capstan_tensor>& model_state() const { return model_state_handles_; }
  std::vector<at::Tensor>& model_state_tensors() { return model_state_; }

  /// Null in a single process that holds everything.
  Sharding* sharding() { return sharding_.get(); }
  /// Brings the parameters that operators use; null while all are here to stay.
  OperatorPolicy* operator_policy() { return home_->operator_policy(); }
  /// Waits until no other thread exchanges anything with the ranks. Throws RuntimeFault.
  void settle();
  /// The same after an exception: gives up what of the step has failed, and returns why ("": nothing has). Parameters
  /// that were to come are brought at their next use, or at stages 1 and 2 by the next share() alone.
  std::string give_up_what_failed();
  /// Called around the forward of a micro-batch. The pass of one that trains ends with end_backward.
  void begin_forward(const std::string& step, ParameterResidency::Pass pass);
  void end_forward(ParameterResidency::Pass pass);
  /// Called around the backward of a micro-batch: adds up its gradients and, in several processes, averages them over
  /// the ranks, unless the step is `local`. `step` names it, "step 12"; `last`: the last micro-batch of its step;
  /// `left_out`: entries whose layers forward has left out, whose gradients nobody is to wait for.
  void begin_backward(const std::string& step, bool last, bool local, const std::vector<std::size_t>& left_out = {});
  void end_backward();
  /// The gradients of these entries are zero where the step gave none, so that they are updated. Called by every rank
  /// after the step's last end_backward().
  void give_zeros(const std::vector<std::size_t>& entries);
  /// Several processes: the parameters that some rank has a gradient of in this step.
  void set_present(const std::vector<std::uint8_t>& present) { gradients_->set_present(present); }
  /// The elements of parameter i that this rank updates.
  Range updated(std::size_t i) const { return plans_[i].part; }
  /// What this rank saves of parameter i: all of it in a single process.
  Range saved_part(std::size_t i) const;
  /// The sum of what each rank gives, where ranks hold parts; else the value itself. `name` says what is summed.
  double sum_over_ranks(const std::string& name, double value);
  /// The sum of the squares of what this rank updates of entry i, and of the gradient of that, 0 where there is none.
  double squares_of_master(std::size_t i);
  double squares_of_gradient(std::size_t i);
  /// Whether parameter i has a gradient in this step, on any rank; after collect_gradients.
  bool has_gradient(std::size_t i) const { return gradients_->on_any_rank(i); }
  /// The gradients of the step, one for each of entries().
  StepGradients& gradients() { return *gradients_; }
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

  /// After an exception, before all tensors of entries get other values: forgets the step, and what of it has not
  /// reached the stores.
  void abandon_step();
  /// Waits until all changes are on the stores. Throws RuntimeFault where they are not, and will not be.
  void settle_stores();

  /// Before the first update: states declared with init = "param" become the master values.
  void start_states();
  /// Makes the tensors of a sub-group's pieces show their values; with Show::kNothing for a caller that overwrites all
  /// of them. Throws RuntimeFault.
  void acquire(const SubGroup& sub_group, TileStaging::Show show = TileStaging::Show::kValues);
  /// Ends that; `changed`: their values are kept, else the earlier ones.
  void release(const SubGroup& sub_group, bool changed);
  /// Whether the tensors of a released sub-group still show its values.
  bool readable_after_release() const { return staging_->empty(); }
  /// A tensor of an entry's pieces: the master, or a state by its index in Piece::state.
  static constexpr int kMaster = -1;
  /// Whether that tensor of entry i is one tensor in memory: the entry's master, or the state of its first piece.
  bool is_here(std::size_t i, int tensor) const;
  /// Where it is not: fills `to`, contiguous and of one dimension, with the elements from `from` on of that tensor of
  /// all that this rank updates of entry i, without changing what is shown. Throws RuntimeFault.
  void read_stored(std::size_t i, int tensor, std::int64_t from, at::Tensor to);
  /// The values of that tensor of the first piece of entry i as they are kept, in the type in which they are kept;
  /// where they are on a store, they mean something between acquire() and release() alone.
  const at::Tensor& kept(std::size_t i, int tensor) const;
  /// What went to and from stores so far.
  OffloadTraffic offload_traffic() const;
  /// What a run that offloads starts with, a line a store.
  std::vector<std::string> offload_lines() const;
  /// After update number `update`: brings compute copies up to date with their masters, where the optimizer has not
  /// written them itself, and rounds masters and states of 16 bits, at random where Options::rounding_seed says so.
  void refresh(const SubGroup& sub_group, std::int64_t update);
  /// The same for all pieces of a sub-group that was acquired to be given other masters, as far as these are on a
  /// store: refresh_all() does it for the others.
  void refresh_copies(const SubGroup& sub_group);
  /// Called after all sub-groups, before share(): has the compute copies of compressed parameters filled.
  void compress(const std::string& step);
  /// Whether masters hold initial values, of which compressions make theirs anew: at first they do.
  void set_initial(bool initial) { initial_ = initial; }
  /// Shows compressions the gradients of the parameters that they compress, on all ranks. `changes`: what they write of
  /// these and of trained states counts; before that no rank has looked at the others'. Without it: once has_gradient()
  /// is known.
  void show_gradients(const std::string& step, bool changes, const std::function<void(CompressedParts&)>& use);
  /// What compressions work on, in the order of entries.
  const CompressedParts& compressed() const { return compressed_; }
  const CompressedPart& compressed_part(const std::string& parameter) const;
  /// Called after compress(): where ranks update parts, every rank gets every part. `step` names the step.
  void share(const std::string& step) { home_->share(step); }
  /// Keeps the values of parameters (of entries(), and after them of frozen()) in memory, for code that uses no
  /// operators / lets them leave again.
  void hold(const std::vector<std::size_t>& parameters);
  void let_go(const std::vector<std::size_t>& parameters) { home_->let_go(parameters); }
  /// Makes the values that rank `root` has in its compute copies, which are held, those of all ranks and masters.
  void take_values(const std::vector<std::size_t>& parameters, int root);
  /// Called after take_values() and let_go(): has those of them compressed that are to be, which take_values() gave
  /// other masters.
  void compress_taken(const std::vector<std::size_t>& parameters);
  /// All compute copies, after masters were loaded.
  void refresh_all();

 private:
  /// What is decided of a trainable parameter before anything is made of it.
  struct EntryPlan {
    at::ScalarType dtype = at::kFloat;  // of the compute copy
    bool compressed = false;
    std::string trained_state_of;        // a parameter's name; empty: none
    std::int64_t whole = 0;              // elements
    Range part;                          // what this rank updates
    at::ScalarType master = at::kFloat;  // the type in which the master is kept
    bool separate = false;               // the master is a tensor of its own
    bool stays = false;                  // stage 3: whole in memory at all times
    bool parameter_stored = false, master_stored = false, gradient_stored = false;  // on a store
    bool copy_stored() const { return parameter_stored && separate; }
  };

  struct Deferred;
  void build_sharding(const std::vector<NamedTensor>& parameters);
  void add_given(const std::vector<NamedTensor>& parameters);
  void plan_entries(const std::vector<NamedTensor>& parameters);
  void plan_stored_parameters(const std::vector<NamedTensor>& parameters);
  void plan_sub_groups(const std::vector<NamedTensor>& parameters, const ParameterGroups& groups);
  void plan_whole();
  TileEntry tile_entry(EntryPlan& plan, const NamedTensor& parameter, const capstan_group& group) const;
  void take_tiles(const std::vector<PlannedTile>& tiles);
  void add_staging(const std::vector<PlannedTile>& tiles, const OffloadStaging& limits);
  StoredValues stored_values();
  void build_entry(const NamedTensor& parameter, std::uint32_t group);
  void put_master(std::size_t index, const at::Tensor& values);
  void attach(const std::vector<NamedTensor>& parameters);
  std::vector<bool> staying() const;
  void build_home(const std::vector<bool>& stays, std::vector<bool> movable_frozen);
  void build_gradients();
  void give_first_values();
  void make_deferred_values();
  bool take_deferred(const c10::Storage& storage);
  bool take_values(Deferred& one);
  void cut_entry(std::size_t index, const at::Tensor& full_values, bool deferred);
  void build_pieces(const ParameterGroups& groups);
  void build_tensors(std::size_t piece);
  void build_states(std::size_t piece, const ParameterGroups& groups);
  bool widens_something() const;
  std::uint64_t wide_bytes(const EntryPlan& plan) const;
  void build_wide();
  void widen(const SubGroup& sub_group);
  void keep(std::size_t piece, std::optional<std::int64_t> update);
  void round(const at::Tensor& from, at::Tensor& to, std::string_view tensor, const Piece& piece,
             std::optional<std::int64_t> update) const;
  void send_kept(Piece& piece);
  void fill_states(const SubGroup& sub_group);
  const StateSpec& entry_spec(int tensor) const;
  void read_piece(std::size_t piece, int tensor, std::int64_t from, at::Tensor to);
  at::Tensor staged(std::byte* memory, std::int64_t elements, at::ScalarType dtype) const;
  const at::Tensor& gradient_of(std::size_t piece);
  void bring_gradients(const SubGroup& sub_group);
  at::Tensor allocate_state(at::IntArrayRef shape, at::ScalarType dtype) const;
  void refresh_piece(Piece& piece);
  void send_to_device(const at::Tensor& to, const at::Tensor& from) const;
  void build_model_state();
  void build_slots();
  void build_compressed();
  CompressedParts compressed_as_they_were(const std::vector<std::size_t>& parameters);
  std::vector<std::uint8_t> compressed_present(const std::string& step);
  void give_gradient(TrainedPart& part);
  bool compresses_some(const std::vector<std::size_t>& parameters) const;
  std::vector<double> totals_of_entries(const std::string& name, std::size_t begin, std::size_t end,
                                        const std::vector<double>& per_block, std::size_t width);
  bool has_state(const StateSpec& spec, const ParameterEntry& entry, const ParameterGroups& groups) const;
  bool partitioned() const { return home_->partitioned(); }

  /// A parameter whose values are still to be made, or are in host memory, from where a device takes its part.
  struct Deferred {
    at::Tensor original;    // as the model made it
    at::Tensor parameter;   // the same, or of the compute type
    std::size_t index = 0;  // counts entries(), after them frozen()
    bool frozen = false;
    bool taken = false;  // this rank has its part
  };

  const Accelerator& accelerator_;
  Options options_;
  std::unique_ptr<StoredParts> stored_parts_;          // stage 3: of parameters that are on a store
  std::unique_ptr<StoredGradients> stored_gradients_;  // and of their gradients
  std::unique_ptr<Sharding> sharding_;                 // uses both
  std::unique_ptr<EarlyGradients> early_gradients_;    // of a device whose updates are in host memory; else null
  std::unique_ptr<ParameterHome> home_;
  std::unique_ptr<StepGradients> gradients_;
  CompressedParts compressed_;
  bool initial_ = true;
  std::vector<Deferred> deferred_;  // while the store is built
  std::vector<ParameterEntry> entries_;
  std::vector<NamedTensor> frozen_;
  std::vector<EntryPlan> plans_;                    // one an entry
  std::vector<bool> frozen_stays_, frozen_stored_;  // one of frozen(): whole in memory at all times; on a store
  std::vector<Piece> pieces_;
  std::vector<TilePiece> places_;          // one a piece, where there are stores
  std::vector<std::size_t> sub_group_of_;  // one a piece
  std::vector<std::size_t> first_piece_;   // one an entry, and the number of all pieces
  std::vector<SubGroup> sub_groups_;
  std::unique_ptr<TileStaging> staging_;  // empty: everything is in memory
  std::vector<at::Tensor> model_state_;
  std::vector<capstan_tensor> model_state_handles_;
  std::vector<std::vector<capstan_tensor>> state_handles_;
  std::vector<capstan_slot> slots_;          // one a piece, filled once
  std::vector<int> compute_written_;         // one a piece
  std::vector<std::uint8_t> is_kept_;        // one a piece: what it keeps in 16 bits is what it shows
  at::Tensor wide_;                          // where the pieces of one sub-group show what they keep in 16 bits
  std::vector<at::Tensor> piece_gradients_;  // one a piece: the current step's, where it is cut, or was brought here
  std::vector<const capstan_slot*> slot_list_;
};

}  // namespace capstan
