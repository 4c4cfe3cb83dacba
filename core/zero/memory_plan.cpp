#include "core/zero/memory_plan.hpp"

#include <algorithm>
#include <utility>

namespace capstan {
namespace {

constexpr std::int64_t kMasterBytes = 4;

/// What one rank owns of the trainable parameters.
struct Share {
  std::int64_t elements = 0;     // with what aligns them
  std::int64_t state_bytes = 0;  // of the optimizer's states
};

Share share_of_rank(const PlannedRun& run, const Partition& partition, int rank) {
  Share share{partition.owned(rank), 0};
  std::size_t index = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    share.state_bytes += partition.part(index++, rank).numel * parameter.state_bytes + parameter.fixed_state_bytes;
  }
  return share;
}

Share whole(const PlannedRun& run) {
  Share share{run.trainable_elements(), 0};
  for (const PlannedParameter& parameter : run.parameters) {
    if (parameter.trainable) share.state_bytes += parameter.numel * parameter.state_bytes + parameter.fixed_state_bytes;
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
    if (run_.built_bytes > 0 && (choice_.stage < 3 || run_.world == 1)) {
      plan_.building = run_.built_bytes + (run_.compute_bytes == 4 ? 0 : largest_trainable(run_) * run_.compute_bytes);
    }
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
  void add(const char* what, std::int64_t bytes, Place place = Place::kMemory) {
    if (bytes > 0) plan_.items.push_back({what, bytes, place});
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
    add("gradients", all.elements * run_.accumulation_bytes, gradients_place());
    if (run_.accumulation_bytes != run_.compute_bytes) {
      // Gradients of a micro-batch stand beside their sum until they were added, one by one.
      const std::int64_t beside = run_.micro_steps > 1 ? all.elements : largest_trainable(run_);
      add("gradients of one micro-batch", beside * run_.compute_bytes);
    }
  }

  Place gradients_place() const {
    const bool offloaded = choice_.optimizer != Place::kMemory && (choice_.stage >= 2 || run_.world == 1);
    return offloaded ? Place::kHost : Place::kMemory;
  }

  void several() {
    const Partition partition = planned_partition(run_);
    const bool partitioned = choice_.stage > 0;
    const Share share = partitioned ? largest_share(run_, partition) : whole(run_);
    parameters(partition, share);
    updated(share);
    const std::int64_t gradients = choice_.stage < 2 ? partition.numel() : share.elements;
    add("gradients", gradients * run_.accumulation_bytes, gradients_place());
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
    add("parameters", (share.elements + (frozen_elements() + run_.world - 1) / run_.world) * bytes, choice_.parameters);
    const std::vector<bool> persistent = persistent_parameters(run_);
    std::int64_t kept = 0, passing = 0, largest = 0;
    std::size_t index = 0;
    for (const PlannedParameter& parameter : run_.parameters) {
      if (!parameter.trainable) continue;
      if (persistent[index++]) {
        kept += parameter.numel;
      } else {
        passing += parameter.numel;
        largest = std::max(largest, parameter.numel);
      }
    }
    add("persistent parameters", kept * bytes);
    // Prefetching may overshoot by one parameter.
    const std::int64_t live = std::min(passing, std::max(run_.zero.stage3_max_live_parameters, largest));
    add("live parameters", live * bytes);
    if (run_.zero.zero_hpz_partition_size > 1) {
      add("secondary copy (hpZ)", run_.trainable_elements() / run_.zero.zero_hpz_partition_size * bytes);
    }
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
    if (choice_.optimizer == Place::kDisk) {
      const std::int64_t buffers =
          zero.offload_optimizer ? zero.offload_optimizer->buffer_count : OffloadOptimizerConfig{}.buffer_count;
      add("buffers of optimizer state", buffers * largest_sub_group_elements(run_, partition) * 4, Place::kHost);
    }
    if (choice_.parameters == Place::kDisk) {
      const OffloadParamConfig offload = zero.offload_param.value_or(OffloadParamConfig{});
      const std::int64_t in_cpu = std::min(offload.max_in_cpu, largest_share(run_, partition).elements);
      add("buffers of parameters", (offload.buffer_count * offload.buffer_size + in_cpu) * run_.compute_bytes,
          Place::kHost);
    }
  }

  const PlannedRun& run_;
  ZeroChoice choice_;
  MemoryPlan plan_;
};

Place place_named(const std::string& device) {
  return device == "nvme" ? Place::kDisk : device == "cpu" ? Place::kHost : Place::kMemory;
}

}  // namespace

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

std::vector<bool> persistent_parameters(const PlannedRun& run) {
  std::vector<bool> persistent;
  std::int64_t kept = 0;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) continue;
    const bool small = parameter.numel <= run.zero.stage3_param_persistence_threshold &&
                       parameter.numel <= run.zero.stage3_model_persistence_threshold - kept;
    persistent.push_back(small);
    if (small) kept += parameter.numel;
  }
  return persistent;
}

bool stage3_holds_all(const PlannedRun& run) {
  const std::int64_t elements = run.trainable_elements();
  return elements <= run.zero.stage3_max_live_parameters && elements <= run.zero.stage3_max_reuse_distance;
}

ZeroChoice configured_choice(const ZeroConfig& zero) {
  return {zero.stage, zero.offload_optimizer ? place_named(zero.offload_optimizer->device) : Place::kMemory,
          zero.offload_param ? place_named(zero.offload_param->device) : Place::kMemory};
}

std::vector<ZeroChoice> zero_choices() {
  std::vector<ZeroChoice> choices;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Place parameters : {Place::kMemory, Place::kHost, Place::kDisk}) {
      for (const Place optimizer : {Place::kMemory, Place::kHost, Place::kDisk}) {
        const bool allowed = stage == 3 || (parameters == Place::kMemory && optimizer != Place::kDisk &&
                                            (stage > 0 || optimizer == Place::kMemory));
        if (allowed) choices.push_back({stage, optimizer, parameters});
      }
    }
  }
  return choices;
}

std::int64_t MemoryPlan::training(Place place) const {
  std::int64_t bytes = 0;
  for (const PlannedBytes& item : items) bytes += item.place == place ? item.bytes : 0;
  return bytes;
}

std::int64_t MemoryPlan::peak(Place place) const {
  return std::max(training(place), place == Place::kMemory ? building : 0);
}

MemoryPlan plan_memory(const PlannedRun& run, const ZeroChoice& choice) { return Planner(run, choice).plan(); }

}  // namespace capstan
