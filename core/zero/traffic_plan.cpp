// What a step sends, from the same partition, ranges and formats as the exchanges themselves.

#include <algorithm>
#include <string>
#include <utility>

#include "core/zero/block_format.hpp"
#include "core/zero/memory_plan.hpp"
#include "core/zero/stage3_plan.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kNumbersOfAStep = 4;  // loss, whether it is finite, where it was not, stop

class TrafficPlanner {
 public:
  TrafficPlanner(const PlannedRun& run, int stage)
      : run_(run), stage_(run.can_be_partitioned ? stage : 0), partition_(planned_partition(run)) {}

  std::vector<PlannedTraffic> plan() {
    if (stage_ == 3) {
      stage3();
    } else {
      gradients();
    }
    step_facts();
    return std::move(rows_);
  }

 private:
  int peers() const { return run_.world - 1; }
  int peers_elsewhere() const { return run_.world - run_.local_world; }

  void add(const char* what, const char* collective, std::int64_t bytes, std::int64_t between_nodes) {
    if (bytes > 0) rows_.push_back({what, collective, bytes, between_nodes});
  }
  /// The same to every other rank.
  void to_all(const char* what, const char* collective, std::int64_t bytes) {
    add(what, collective, bytes * peers(), bytes * peers_elsewhere());
  }

  std::int64_t own() const { return partition_.owned(0); }

  /// To the owners; at stage 0 the owners then send the means to all.
  void reduce(std::int64_t times) {
    const std::int64_t bytes = run_.communication_bytes * times;
    std::int64_t elsewhere = 0;
    for (int rank = run_.local_world; rank < run_.world; ++rank) elsewhere += partition_.reduced(rank);
    const std::int64_t here = partition_.reduced(0), back = stage_ == 0 ? here * bytes : 0;
    add("gradients", stage_ == 0 ? "all_reduce" : "reduce_scatter",
        (partition_.reduced() - here) * bytes + back * peers(), elsewhere * bytes + back * peers_elsewhere());
  }

  void late_gradients(std::int64_t times) {
    const auto buckets = static_cast<std::int64_t>(partition_.buckets().size());
    to_all("late gradients", "all_gather", buckets * times);
  }

  void gradients() {
    const std::int64_t times = stage_ == 2 ? run_.micro_steps : 1;
    reduce(times);
    if (run_.zero.overlap_comm || stage_ == 2 || (stage_ == 1 && run_.zero.grad_hooks)) late_gradients(times);
    if (stage_ == 0) return;
    if (run_.zero.allgather_partitions) {
      to_all("updated parameters", "all_gather", own() * run_.compute_bytes);
    } else {
      to_all("updated parameters", "broadcast", own() * run_.compute_bytes);
    }
  }

  /// Loss, which gradients there are, their norm; what the optimizer measured.
  void step_facts() {
    std::int64_t blocks = 0, parameters = 0;
    for (const PlannedParameter& parameter : run_.parameters) {
      if (!parameter.trainable) continue;
      blocks += blocks_in(partition_.part(static_cast<std::size_t>(parameters++), 0).numel);
    }
    to_all("loss and norm", "all_gather", 8 * (kNumbersOfAStep + 2 * (run_.norm ? blocks : 1)) + parameters);
    if (stage_ == 0) return;
    to_all("measures of the optimizer", "all_gather", 8 * run_.measures * blocks);
    to_all("statistics of compressions", "all_gather", run_.statistics_bytes);
  }

  void stage3() {
    gathers();
    if (run_.zero.zero_quantized_gradients && run_.local_world < run_.world) {
      quantized_gradients();
    } else {
      reduce(run_.micro_steps);
    }
    late_gradients(run_.micro_steps);
  }

  void gathers() {
    const Stage3Plan stage3(run_);
    std::int64_t trained = 0, frozen = 0, slices = 0, kept = 0;
    stage3.follow([&](const Stage3Plan::Fetch& fetch) {
      for (const std::size_t i : fetch.from_all) {
        (run_.parameters[i].trainable ? trained : frozen) += fetch.times * stage3.sent_bytes(i, 0);
      }
      for (const std::size_t i : fetch.from_second) slices += fetch.times * stage3.slice_bytes(i);
    });
    for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
      if (run_.parameters[i].trainable && stage3.stays(i)) kept += stage3.sent_bytes(i, 0);
    }
    const std::int64_t near = stage3.secondary_ranks();
    to_all("parameters", "all_gather", trained);
    to_all("frozen parameters", "all_gather", frozen);
    add("parameters from the second copy", "all_to_all_single", slices * (near - 1),
        slices * std::max<std::int64_t>(near - run_.local_world, 0));
    to_all("persistent parameters", "all_gather", kept);
  }

  /// Bytes of every rank's parts of all buckets: codes and scales, and what is not quantised.
  struct Parts {
    std::vector<std::int64_t> quantized, rest;
  };

  Parts quantized_parts() const {
    std::vector<std::vector<std::int64_t>> shapes;
    for (const PlannedParameter& parameter : run_.parameters) {
      if (parameter.trainable) shapes.push_back(parameter.shape);
    }
    const auto ranks = static_cast<std::size_t>(run_.world);
    Parts parts{std::vector<std::int64_t>(ranks), std::vector<std::int64_t>(ranks)};
    for (std::size_t b = 0; b < partition_.buckets().size(); ++b) {
      const auto of_rank = gradient_ranges(partition_, b, shapes);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        std::int64_t blocks = 0, codes = 0;
        for (const GradientRange& range : of_rank[rank]) {
          if (range.block == 0) {
            parts.rest[rank] += range.numel * run_.communication_bytes;
            continue;
          }
          const BlockFormat format{4, range.numel, range.block};
          blocks += format.blocks();
          codes += format.code_bytes();
        }
        parts.quantized[rank] += (4 * blocks + codes + 3) / 4 * 4;
      }
    }
    return parts;
  }

  void quantized_gradients() {
    const Parts parts = quantized_parts();
    std::int64_t within = 0, between = 0, rest = 0, rest_elsewhere = 0;
    for (int rank = 1; rank < run_.world; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      (rank % run_.local_world != 0 ? within : between) += parts.quantized[r];
      rest += parts.rest[r];
      if (rank >= run_.local_world) rest_elsewhere += parts.rest[r];
    }
    const std::int64_t times = run_.micro_steps;
    add("gradients, 4 bits, within nodes", "all_to_all_single", within * times, 0);
    add("gradients, 4 bits, between nodes", "all_to_all_single", between * times, between * times);
    add("gradients of one dimension", "reduce_scatter", rest * times, rest_elsewhere * times);
  }

  const PlannedRun& run_;
  int stage_;
  Partition partition_;
  std::vector<PlannedTraffic> rows_;
};

}  // namespace

std::vector<PlannedTraffic> plan_traffic(const PlannedRun& run, int stage) {
  if (run.world == 1) return {};
  return TrafficPlanner(run, stage).plan();
}

}  // namespace capstan
