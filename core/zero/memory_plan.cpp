#include "core/zero/memory_plan.hpp"

#include <algorithm>
#include <utility>

#include "core/zero/stage3_plan.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kMasterBytes = 4;

/// What one rank owns of the trainable parameters.
struct Share {
  std::int64_t elements = 0;     // with what aligns them
  std::int64_t state_bytes = 0;  // bytes of the optimizer's states
};

Share share_of_rank(const PlannedRun& run, const Partition& partition, int rank) {
  Share share{partition.owned(rank), 0};
  std::size_t index = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    share.state_bytes += parameter.bytes_of_states(partition.part(index++, rank).numel);
  }
  return share;
}

Share whole(const PlannedRun& run) {
  Share share{run.trainable_elements(), 0};
  for (const PlannedParameter& parameter : run.parameters) {
    if (parameter.trainable) share.state_bytes += parameter.bytes_of_states(parameter.numel);
  }
  return share;
}

Share largest_share(const PlannedRun& run, const Partition& partition) {
  Share largest;
  for (int rank = 0; rank < run.world; ++rank) {
    const Share share = share_of_rank(run, partition, rank);
    largest = {std::max(largest.elements, share.elements), std::max(largest.state_bytes, share.state_bytes)};
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

/// Bytes of the states and the master of the largest sub-group of a rank's share.
std::int64_t largest_sub_group_elements(const PlannedRun& run, const Partition& partition) {
  std::int64_t largest = 0, elements = 0;
  std::size_t index = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    elements += partition.part(index++, 0).numel;
    largest = std::max(largest, elements);
    if (elements >= run.zero.sub_group_size) elements = 0;
  }
  return largest;
}

class Planner {
 public:
  Planner(const PlannedRun& run, const ZeroChoice& choice) : run_(run), choice_(choice) {
    if (!run.can_be_partitioned) choice_.stage = 0;
  }

  MemoryPlan plan() {
    // At stage 3 parameters get their values one by one, which never takes what training does.
    if (choice_.stage < 3 || run_.world == 1) plan_.building = building();
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
        if (run_.compute_bytes != kMasterBytes) master = part;
        // The original becomes the master.
        if (!partitioned && old == whole) master = old = 0;
      }
      here += (cast ? bytes : 0) + master;
      most = std::max(most, here);
      here -= old;
    }
    return partitioned ? std::max(most, here + largest_trainable(run_) * run_.compute_bytes) : most;
  }

  std::int64_t frozen_elements() const { return run_.elements() - run_.trainable_elements(); }

  /// Masters and states of what this rank updates; a single process offloads as stage 1 does.
  void updated(const Share& share) {
    const std::int64_t masters = run_.compute_bytes == kMasterBytes ? 0 : kMasterBytes * share.elements;
    add("fp32 masters", masters, choice_.optimizer);
    add("optimizer state", share.state_bytes, choice_.optimizer);
  }

  void one_process() {
    const Share all = whole(run_);
    add("parameters", run_.elements() * run_.compute_bytes, choice_.parameters);
    updated(all);
    add("gradients", all.elements * run_.accumulation_bytes, gradients_tier());
    if (run_.accumulation_bytes != run_.compute_bytes) {
      // Gradients of a micro-batch stand beside their sum until they were added, one by one.
      const std::int64_t beside = run_.micro_steps > 1 ? all.elements : largest_trainable(run_);
      add("gradients of one micro-batch", beside * run_.compute_bytes);
    }
  }

  MemoryTier gradients_tier() const {
    const bool offloaded = choice_.optimizer != MemoryTier::kMemory && (choice_.stage >= 2 || run_.world == 1);
    return offloaded ? MemoryTier::kHost : MemoryTier::kMemory;
  }

  void several() {
    const Partition partition = planned_partition(run_);
    const bool partitioned = choice_.stage > 0;
    const Share share = partitioned ? largest_share(run_, partition) : whole(run_);
    parameters(partition, share);
    updated(share);
    const std::int64_t gradients = choice_.stage < 2 ? partition.numel() : share.elements;
    add("gradients", gradients * run_.accumulation_bytes, gradients_tier());
    exchange_buffers(partition);
    offload_buffers(partition);
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

  void stage3_parameters(const Share& share) {
    const std::int64_t bytes = run_.compute_bytes;
    const Stage3Plan stage3(run_);
    std::int64_t frozen = 0, kept = 0, buffers = 0, slices = 0;
    for (int rank = 0; rank < run_.world; ++rank) frozen = std::max(frozen, stage3.frozen_bytes(rank));
    add("parameters", share.elements * bytes + frozen, choice_.parameters);
    for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
      if (stage3.stays(i)) kept += run_.parameters[i].numel;
      // A frozen parameter that is persistent is never fetched.
      if (run_.parameters[i].trainable || !stage3.stays(i)) slices += stage3.slice_bytes(i);
    }
    add("persistent parameters", kept * bytes);
    const std::int64_t live =
        stage3.follow([&](const Stage3Plan::Fetch& fetch) { buffers = std::max(buffers, stage3.buffer_bytes(fetch)); });
    add("live parameters", live * bytes);
    add("buffers of gathering", buffers);
    if (stage3.secondary_ranks() > 1) add("secondary copy (hpZ)", slices);
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

  void offload_buffers(const Partition& partition) {
    const ZeroConfig& zero = run_.zero;
    if (choice_.optimizer == MemoryTier::kDisk) {
      const std::int64_t buffers =
          zero.offload_optimizer ? zero.offload_optimizer->buffer_count : OffloadOptimizerConfig{}.buffer_count;
      add("buffers of optimizer state", buffers * largest_sub_group_elements(run_, partition) * 4, MemoryTier::kHost);
    }
    if (choice_.parameters == MemoryTier::kDisk) {
      const OffloadParamConfig offload = zero.offload_param.value_or(OffloadParamConfig{});
      const std::int64_t in_cpu = std::min(offload.max_in_cpu, largest_share(run_, partition).elements);
      add("buffers of parameters", (offload.buffer_count * offload.buffer_size + in_cpu) * run_.compute_bytes,
          MemoryTier::kHost);
    }
  }

  const PlannedRun& run_;
  ZeroChoice choice_;
  MemoryPlan plan_;
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
    if (parameter.trainable) inputs.push_back({parameter.numel, run.whole_parameters});
  }
  return {inputs, run.zero.reduce_bucket_size, run.world};
}

ZeroChoice configured_choice(const ZeroConfig& zero) {
  return {zero.stage, zero.offload_optimizer ? tier_named(zero.offload_optimizer->device) : MemoryTier::kMemory,
          zero.offload_param ? tier_named(zero.offload_param->device) : MemoryTier::kMemory};
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
