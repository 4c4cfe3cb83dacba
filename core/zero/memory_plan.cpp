#include "core/zero/memory_plan.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/zero/offload_plan.hpp"
#include "core/zero/stage3_plan.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kMasterBytes = 4;
constexpr std::int64_t kPinnedBytes = 64 << 20;  // PinnedCopies

/// What one rank owns of the trainable parameters.
struct Share {
  std::int64_t elements = 0;     // with what aligns them
  std::int64_t compressed = 0;   // of them, those whose compute copies compressions fill
  std::int64_t state_bytes = 0;  // bytes of the optimizer's states
  std::int64_t mask_bytes = 0;   // bytes of the compressions' states that are not trained
};

Share share_of_rank(const PlannedRun& run, const Partition& partition, int rank) {
  Share share{partition.owned(rank)};
  std::size_t index = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    const std::int64_t numel = partition.part(index++, rank).numel;
    if (parameter.compressed) share.compressed += numel;
    share.mask_bytes += parameter.mask_bytes * numel;
    share.state_bytes += parameter.bytes_of_states(numel);
  }
  return share;
}

Share whole(const PlannedRun& run) {
  Share share{run.trainable_elements()};
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    if (parameter.compressed) share.compressed += parameter.numel;
    share.mask_bytes += parameter.mask_bytes * parameter.numel;
    share.state_bytes += parameter.bytes_of_states(parameter.numel);
  }
  return share;
}

Share largest_share(const PlannedRun& run, const Partition& partition) {
  Share largest;
  for (int rank = 0; rank < run.world; ++rank) {
    const Share share = share_of_rank(run, partition, rank);
    largest = {std::max(largest.elements, share.elements), std::max(largest.compressed, share.compressed),
               std::max(largest.state_bytes, share.state_bytes), std::max(largest.mask_bytes, share.mask_bytes)};
  }
  return largest;
}

std::int64_t largest_part_of_a_bucket(const Partition& partition) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : partition.buckets()) {
    for (std::size_t r = 0; r + 1 < bucket.rank_first.size(); ++r) {
      largest = std::max(largest, bucket.rank_first[r + 1] - bucket.rank_first[r]);
    }
  }
  return largest;
}

std::int64_t largest_trainable(const PlannedRun& run) {
  std::int64_t largest = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (parameter.trainable) largest = std::max(largest, parameter.numel);
  }
  return largest;
}

/// Elements of the sub-groups of rank 0, or of the whole model.
std::vector<std::int64_t> sub_groups(const PlannedRun& run, const Partition& partition, bool partitioned) {
  std::vector<std::int64_t> groups;
  std::int64_t elements = 0;
  std::size_t index = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    elements += partitioned ? partition.part(index, 0).numel : parameter.numel;
    const bool last = ++index == partition.order().size();
    if (last || elements >= run.zero.sub_group_size) groups.push_back(std::exchange(elements, 0));
  }
  return groups;
}

/// The most bytes that an optimizer's states take for an element.
std::int64_t state_bytes_of_an_element(const PlannedRun& run) {
  std::int64_t most = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    const std::int64_t block = parameter.bytes_of_states(Partition::kBlock) - parameter.fixed_state_bytes;
    most = std::max(most, (block + Partition::kBlock - 1) / Partition::kBlock);
  }
  return most;
}

class Planner {
 public:
  Planner(const PlannedRun& run, const ZeroChoice& choice) : run_(run), choice_(choice) {
    if (!run.can_be_partitioned || (run.world == 1 && !parameters_leave())) choice_.stage = 0;
  }

  MemoryPlan plan() {
    // At stage 3 parameters get their values one by one, which never takes what training does.
    if (choice_.stage < 3) plan_.building = building();
    add("buffers of the model", run_.buffer_bytes);
    if (run_.world == 1) {
      one_process();
    } else {
      several();
    }
    add("optimizer state of the whole model", run_.model_state_bytes);
    return std::move(plan_);
  }

 private:
  void add(const char* what, std::int64_t bytes, MemoryTier tier = MemoryTier::kMemory) {
    if (bytes > 0) plan_.items.push_back({what, bytes, tier});
  }

  /// The model as it is built, whose parameters are cast one after the other, and then, from stage 1 on, moved
  /// together.
  std::int64_t building() const {
    const bool partitioned = run_.world > 1 && choice_.stage > 0;
    const Partition partition = planned_partition(run_);
    std::int64_t here = run_.buffer_bytes, most = 0;
    for (const PlannedParameter& parameter : run_.parameters) here += parameter.built_bytes;
    most = here;
    std::size_t index = 0;
    for (const PlannedParameter& parameter : run_.parameters) {
      const std::int64_t bytes = parameter.numel * run_.compute_bytes, whole = parameter.numel * kMasterBytes;
      const bool cast = parameter.built_bytes != bytes;
      std::int64_t master = 0, old = cast ? parameter.built_bytes : 0;
      if (parameter.trainable) {
        const std::int64_t part = partitioned ? partition.part(index++, 0).numel * kMasterBytes : whole;
        if (run_.compute_bytes != run_.master_bytes || parameter.compressed) master = part;
        // The original becomes the master.
        if (!partitioned && master > 0 && old == whole) master = old = 0;
      }
      here += (cast ? bytes : 0) + master;
      most = std::max(most, here);
      here -= old;
    }
    return partitioned ? std::max(most, here + largest_trainable(run_) * run_.compute_bytes) : most;
  }

  std::int64_t frozen_elements() const { return run_.elements() - run_.trainable_elements(); }

  bool parameters_leave() const {
    return choice_.stage == 3 &&
           (choice_.parameters == MemoryTier::kDisk || (run_.on_device && choice_.parameters == MemoryTier::kHost));
  }
  bool optimizer_leaves() const { return choice_.optimizer == MemoryTier::kDisk; }
  MemoryTier optimizer_tier() const {
    if (!optimizer_leaves()) return updates_on_host() ? MemoryTier::kHost : choice_.optimizer;
    return run_.optimizer_in_memory ? MemoryTier::kHost : choice_.optimizer;
  }
  MemoryTier parameter_tier() const {
    return parameters_leave() && run_.parameters_in_memory ? MemoryTier::kHost : choice_.parameters;
  }
  /// Whether masters and states are apart from the device that trains.
  bool updates_on_host() const {
    return run_.on_device && (run_.updates_on_host || choice_.optimizer != MemoryTier::kMemory || parameters_leave());
  }
  bool partitioned() const { return run_.world > 1 && choice_.stage > 0; }

  /// The share of the elements whose state stays in memory by offload_optimizer.ratio.
  double share_in_memory() const {
    const double ratio = optimizer_offload_in_force(run_.zero).ratio;
    if (!optimizer_leaves() || ratio >= 1) return 0;
    const std::vector<std::int64_t> groups = sub_groups(run_, planned_partition(run_), partitioned());
    const std::int64_t kept = sub_groups_in_memory(ratio, static_cast<std::int64_t>(groups.size()));
    const auto elements = static_cast<double>(std::accumulate(groups.begin(), groups.end(), std::int64_t{0}));
    return elements == 0
               ? 0
               : static_cast<double>(std::accumulate(groups.begin(), groups.begin() + kept, std::int64_t{0})) /
                     elements;
  }

  /// Masters and states of what this rank updates; a single process offloads as stage 1 does.
  void updated(const Share& share) {
    const double stays = share_in_memory();
    const bool apart = updates_on_host();
    const MemoryTier here = apart ? MemoryTier::kHost : MemoryTier::kMemory;
    const auto add_parts = [&](const char* what, std::int64_t bytes) {
      const auto kept = static_cast<std::int64_t>(static_cast<double>(bytes) * stays);
      add(what, kept, here);
      add(what, bytes - kept, optimizer_tier());
    };
    const std::int64_t plain = share.elements - share.compressed;
    add_parts(run_.master_bytes == kMasterBytes ? "fp32 masters" : "16-bit masters",
              run_.compute_bytes == run_.master_bytes && !apart ? 0 : run_.master_bytes * plain);
    add("fp32 masters of compressed weights", kMasterBytes * share.compressed, here);
    if (apart) {
      if (run_.compute_bytes < kMasterBytes) {
        const std::int64_t copied = run_.compute_bytes == run_.master_bytes ? share.compressed : share.elements;
        add("16-bit copies for the device", run_.compute_bytes * copied, MemoryTier::kHost);
      }
      // Gradients come down while backward goes on, but for those on a store, which come with their sub-group.
      const std::int64_t brought =
          gradients_leave() ? std::min(share.elements, run_.zero.sub_group_size) : share.elements;
      add("gradients in host memory", run_.accumulation_bytes * brought, MemoryTier::kHost);
      add("pinned memory for copies", 2 * kPinnedBytes, MemoryTier::kHost);
    }
    add("masks of compressed weights", share.mask_bytes);
    add_parts("optimizer state", share.state_bytes);
  }

  void one_process() {
    const Share all = whole(run_);
    if (parameters_leave()) {
      stage3_parameters(all);
    } else {
      add("parameters", run_.elements() * run_.compute_bytes, choice_.parameters);
    }
    updated(all);
    gradients(all.elements);
    if (run_.accumulation_bytes != run_.compute_bytes) {
      // Gradients of a micro-batch stand beside their sum until they were added, one by one.
      const bool beside_all = run_.micro_steps > 1 && !gradients_leave();
      add("gradients of one micro-batch", (beside_all ? all.elements : largest_trainable(run_)) * run_.compute_bytes);
    }
    staging(planned_partition(run_), all);
  }

  bool gradients_leave() const { return parameters_leave() && optimizer_leaves(); }

  /// Where parameters and states are stored, gradients of stored parameters go to the states; one is being made
  /// and one, where several add up, being read.
  void gradients(std::int64_t elements) {
    if (!gradients_leave()) return add("gradients", elements * run_.accumulation_bytes, gradients_tier());
    const std::int64_t leave = std::min(elements, elements_stored_);
    add("gradients", leave * run_.accumulation_bytes, optimizer_tier());
    const std::int64_t under_way = (run_.micro_steps > 1 ? 2 : 1) * largest_trainable(run_);
    add("gradients", (elements - leave + std::min(leave, under_way)) * run_.accumulation_bytes);
  }

  MemoryTier gradients_tier() const {
    if (run_.on_device) return MemoryTier::kMemory;
    const bool offloaded = choice_.optimizer != MemoryTier::kMemory && (choice_.stage >= 2 || run_.world == 1);
    return offloaded ? MemoryTier::kHost : MemoryTier::kMemory;
  }

  void several() {
    const Partition partition = planned_partition(run_);
    const Share share = partitioned() ? largest_share(run_, partition) : whole(run_);
    parameters(partition, share);
    updated(share);
    gradients(choice_.stage < 2 ? partition.numel() : share.elements);
    exchange_buffers(partition);
    staging(partition, share);
  }

  void parameters(const Partition& partition, const Share& share) {
    const std::int64_t bytes = run_.compute_bytes;
    if (choice_.stage == 0) return add("parameters", run_.elements() * bytes);
    if (choice_.stage == 3) return stage3_parameters(share);
    // All trainable ones lie in one piece of memory; those that cannot be moved there are twice.
    std::int64_t elements = partition.numel() + frozen_elements();
    for (const PlannedParameter& parameter : run_.parameters) {
      if (parameter.trainable && !parameter.movable) elements += parameter.numel;
    }
    add("parameters", elements * bytes);
  }

  /// Bytes of this rank's parts, of the rank that has most, of the parameters that are stored.
  std::int64_t count_stored(const Stage3Plan& stage3) {
    std::vector<std::int64_t> numels;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
      if (stage3.stays(i) || run_.parameters[i].compressed) continue;
      numels.push_back(run_.parameters[i].numel);
      indices.push_back(i);
    }
    const std::vector<bool> stored = stored_parameters(
        numels, run_.world,
        choice_.parameters == MemoryTier::kHost ? 0 : parameter_offload_in_force(run_.zero).max_in_cpu);
    std::int64_t most = 0;
    for (int rank = 0; rank < run_.world; ++rank) {
      std::int64_t trained = 0, all = 0;
      for (std::size_t i = 0; i < stored.size(); ++i) {
        if (!stored[i]) continue;
        const std::int64_t part = stage3.part(indices[i], rank);
        all += part;
        if (run_.parameters[indices[i]].trainable) trained += part;
      }
      most = std::max(most, all);
      elements_stored_ = std::max(elements_stored_, trained);
    }
    return most * run_.compute_bytes;
  }

  void stage3_parameters(const Share& share) {
    const std::int64_t bytes = run_.compute_bytes;
    const Stage3Plan stage3(run_);
    std::int64_t frozen = 0, kept = 0, buffers = 0, slices = 0, parts = 0;
    for (int rank = 0; rank < run_.world; ++rank) frozen = std::max(frozen, stage3.frozen_bytes(rank));
    const std::int64_t stored = parameters_leave() ? count_stored(stage3) : 0;
    add("parameters", stored, parameter_tier());
    add("parameters", share.elements * bytes + frozen - stored,
        parameters_leave() ? MemoryTier::kMemory : choice_.parameters);
    for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
      if (stage3.stays(i)) kept += run_.parameters[i].numel;
      // A frozen parameter that is persistent is never fetched.
      if (run_.parameters[i].trainable || !stage3.stays(i)) slices += stage3.slice_bytes(i);
    }
    const std::int64_t live = stage3.follow([&](const Stage3Plan::Fetch& fetch) {
      buffers = std::max(buffers, stage3.buffer_bytes(fetch));
      std::int64_t read = 0;
      for (const std::size_t i : fetch.from_all) read += stage3.part(i, 0) * bytes;
      parts = std::max(parts, read);
    });
    // A single process reads a parameter into its place, and has those that stay once.
    if (run_.world == 1) return add("live parameters", std::min(live * bytes, stored + share.compressed * bytes));
    add("scales of compressed weights", stage3.scale_bytes());
    add("persistent parameters", kept * bytes);
    add("live parameters", live * bytes);
    add("buffers of gathering", buffers);
    if (stage3.secondary_ranks() > 1) add("secondary copy (hpZ)", slices);
    if (parameters_leave()) add("parts that are read", std::min(parts, stored));
  }

  void exchange_buffers(const Partition& partition) {
    const std::int64_t sent = run_.communication_bytes;
    // A gradient that autograd has just made, beside the bucket that takes it.
    std::int64_t bytes = largest_trainable(run_) * run_.compute_bytes;
    if (choice_.stage >= 2) {
      const std::size_t buffers =
          run_.zero.overlap_comm ? std::min(Partition::kBuffers, partition.buckets().size()) : 1;
      bytes += partition.largest_bucket() * sent * static_cast<std::int64_t>(buffers);
    } else if (run_.accumulation_bytes != sent) {
      bytes += partition.largest_bucket() * sent;
    }
    // Every rank's addend of one's own part, and their sum; where they are of 16 bits, one widened and the mean
    // narrowed.
    const std::int64_t part = largest_part_of_a_bucket(partition);
    bytes += part * (4 + sent * (run_.world - 1)) + (sent == 4 ? 0 : part * (4 + sent));
    add("gradient buckets", bytes);
  }

  /// The tiles through which the update reads and writes what is stored.
  void staging(const Partition& partition, const Share& share) {
    std::int64_t bytes = parameters_leave() ? run_.compute_bytes : 0;
    if (optimizer_leaves()) {
      const bool one_tensor = run_.compute_bytes == run_.master_bytes && (run_.master_bytes == 4 || !updates_on_host());
      bytes += (one_tensor ? 0 : run_.master_bytes) + state_bytes_of_an_element(run_);
    }
    if (gradients_leave()) bytes += run_.accumulation_bytes;
    const OffloadOptimizerConfig offload = optimizer_offload_in_force(run_.zero);
    const std::vector<std::int64_t> groups = sub_groups(run_, partition, partitioned());
    const std::int64_t largest = groups.empty() ? 0 : *std::max_element(groups.begin(), groups.end());
    const auto in_memory = static_cast<std::int64_t>(share_in_memory() * static_cast<double>(share.elements));
    const std::int64_t elements = optimizer_leaves() ? share.elements - in_memory : elements_stored_;
    const auto staged = [&](std::int64_t of_rank) {
      return offload_staging(std::max(bytes, run_.wide_bytes), run_.whole_parameters ? largest_trainable(run_) : 0,
                             run_.zero.sub_group_size, of_rank,
                             bytes > 0 ? staging_bound(offload.buffer_count, largest) : INT64_MAX,
                             bytes > 0 ? tile_slots(offload) : 1);
    };
    const OffloadStaging tiles = staged(bytes > 0 ? std::max(elements, elements_stored_) : 0);
    add("staging of offload", tiles.slots * tiles.tile_elements * bytes, MemoryTier::kHost);
    add("fp32 tile of what is kept in 16 bits", staged(share.elements).tile_elements * run_.wide_bytes,
        updates_on_host() ? MemoryTier::kHost : MemoryTier::kMemory);
    if (gradients_leave()) add("staging of gradients", kGradientBuffers * kGradientBufferBytes, MemoryTier::kHost);
  }

  const PlannedRun& run_;
  ZeroChoice choice_;
  MemoryPlan plan_;
  std::int64_t elements_stored_ = 0;  // of trainable parameters, of the rank that has most
};

MemoryTier tier_named(const std::string& device) {
  return device == "nvme" ? MemoryTier::kDisk : device == "cpu" ? MemoryTier::kHost : MemoryTier::kMemory;
}

}  // namespace

std::int64_t PlannedParameter::bytes_of_states(std::int64_t elements) const {
  std::int64_t bytes = elements * state_bytes + fixed_state_bytes;
  for (const PlannedBlockState& state : block_states) {
    bytes += (elements + state.block - 1) / state.block * state.bytes;
  }
  return bytes;
}

std::int64_t PlannedRun::elements() const {
  std::int64_t sum = 0;
  for (const PlannedParameter& parameter : parameters) sum += parameter.numel;
  return sum;
}

std::int64_t PlannedRun::trainable_elements() const {
  std::int64_t sum = 0;
  for (const PlannedParameter& parameter : parameters) sum += parameter.trainable ? parameter.numel : 0;
  return sum;
}

Partition planned_partition(const PlannedRun& run) {
  std::vector<Partition::Parameter> inputs;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    inputs.push_back({parameter.numel, run.whole_parameters, parameter.given, parameter.like});
  }
  return {inputs, run.zero.reduce_bucket_size, run.world};
}

ZeroChoice configured_choice(const Config& config) {
  const ZeroConfig& zero = config.zero;
  ZeroChoice choice{zero.stage,
                    zero.offload_optimizer ? tier_named(zero.offload_optimizer->device) : MemoryTier::kMemory,
                    zero.offload_param ? tier_named(zero.offload_param->device) : MemoryTier::kMemory};
  if (config.optimizer_offload) choice.optimizer = MemoryTier::kDisk;
  const bool to_host = config.device != "cpu" && choice.parameters == MemoryTier::kHost;
  if (config.parameter_offload && !to_host) choice.parameters = MemoryTier::kDisk;
  return choice;
}

std::vector<ZeroChoice> zero_choices() {
  std::vector<ZeroChoice> choices;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const MemoryTier parameters : {MemoryTier::kMemory, MemoryTier::kHost, MemoryTier::kDisk}) {
      for (const MemoryTier optimizer : {MemoryTier::kMemory, MemoryTier::kHost, MemoryTier::kDisk}) {
        const bool allowed = stage == 3 || (parameters == MemoryTier::kMemory && optimizer != MemoryTier::kDisk &&
                                            (stage > 0 || optimizer == MemoryTier::kMemory));
        if (allowed) choices.push_back({stage, optimizer, parameters});
      }
    }
  }
  return choices;
}

std::int64_t MemoryPlan::training(MemoryTier tier) const {
  std::int64_t bytes = 0;
  for (const PlannedBytes& item : items) bytes += item.tier == tier ? item.bytes : 0;
  return bytes;
}

std::int64_t MemoryPlan::peak(MemoryTier tier) const {
  return std::max(training(tier), tier == MemoryTier::kMemory ? building : 0);
}

MemoryPlan plan_memory(const PlannedRun& run, const ZeroChoice& choice) { return Planner(run, choice).plan(); }

}  // namespace capstan
