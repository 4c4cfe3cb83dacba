#include "core/zero/stage3_plan.hpp"

#include <algorithm>

#include "core/memory/persistence.hpp"
#include "core/memory/use_trace.hpp"
#include "core/zero/block_format.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kPassesFollowed = 3;  // the first starts with nothing; what the third does, the others do

Partition frozen_partition(const PlannedRun& run) {
  std::vector<Partition::Parameter> inputs;
  for (const PlannedParameter& parameter : run.parameters) {
    if (!parameter.trainable) inputs.push_back({parameter.numel});
  }
  return {inputs, run.zero.reduce_bucket_size, run.world};
}

}  // namespace

Stage3Plan::Stage3Plan(const PlannedRun& run)
    : run_(run), trained_(planned_partition(run)), frozen_(frozen_partition(run)), stays_(run.parameters.size()) {
  std::size_t counts[2] = {0, 0};
  for (const PlannedParameter& parameter : run.parameters) index_.push_back(counts[parameter.trainable]++);
  Persistence persistence(run.zero.stage3_param_persistence_threshold, run.zero.stage3_model_persistence_threshold);
  for (const bool trainable : {true, false}) {
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      const PlannedParameter& parameter = run.parameters[i];
      if (parameter.trainable == trainable) stays_[i] = persistence.stays(parameter.numel);
    }
  }
}

Range Stage3Plan::range(std::size_t parameter, int rank) const {
  return (run_.parameters[parameter].trainable ? trained_ : frozen_).part(index_[parameter], rank);
}

/// Frozen parameters that come and go may be kept as codes.
bool Stage3Plan::is_coded(std::size_t parameter) const {
  return run_.zero.zero_quantized_nontrainable_weights && !run_.parameters[parameter].trainable && !stays_[parameter];
}

std::int64_t Stage3Plan::sent_bytes(std::size_t parameter, int rank) const {
  if (const auto& codes = run_.parameters[parameter].codes) return codes->bytes(range(parameter, rank));
  const std::int64_t numel = part(parameter, rank);
  const BlockFormat format = weight_format(numel);
  const bool codes = format.block > 0 && (run_.zero.zero_quantized_weights || is_coded(parameter));
  return codes ? format.message_bytes() : numel * run_.compute_bytes;
}

std::int64_t Stage3Plan::scale_bytes() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < run_.world; ++rank) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
      if (const auto& codes = run_.parameters[i].codes) bytes += codes->scale_bytes(range(i, rank));
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::int64_t Stage3Plan::frozen_bytes(int rank) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < stays_.size(); ++i) {
    if (run_.parameters[i].trainable) continue;
    bytes += is_coded(i) ? sent_bytes(i, rank) : part(i, rank) * run_.compute_bytes;
  }
  return bytes;
}

int Stage3Plan::secondary_ranks() const {
  return static_cast<int>(std::clamp<std::int64_t>(run_.zero.zero_hpz_partition_size, 1, run_.world));
}

std::int64_t Stage3Plan::slice_bytes(std::size_t parameter) const {
  const std::int64_t ranks = secondary_ranks();
  return (run_.parameters[parameter].numel + ranks - 1) / ranks * run_.compute_bytes;
}

std::int64_t Stage3Plan::buffer_bytes(const Fetch& fetch) const {
  // Frozen parameters, [0], and trained ones, [1], are gathered in separate calls.
  std::int64_t codes[2] = {0, 0}, slices[2] = {0, 0}, widened = 0, compressed = 0;
  for (const std::size_t i : fetch.from_all) {
    if (run_.parameters[i].codes) {
      for (int rank = 0; rank < run_.world; ++rank) compressed += sent_bytes(i, rank);
      continue;
    }
    if (!run_.zero.zero_quantized_weights && !is_coded(i)) continue;
    for (int rank = is_coded(i) ? 1 : 0; rank < run_.world; ++rank) {
      codes[run_.parameters[i].trainable] += sent_bytes(i, rank);
      widened = std::max(widened, 4 * part(i, rank));  // codes become fp32 values first
    }
  }
  for (const std::size_t i : fetch.from_second) slices[run_.parameters[i].trainable] += slice_bytes(i);
  if (run_.compute_bytes == 4) widened = 0;
  return std::max(
      {compressed, std::max(codes[0], codes[1]) + widened, std::max(slices[0], slices[1]) * (1 + secondary_ranks())});
}

std::vector<std::size_t> Stage3Plan::uses_of_a_pass() const {
  std::vector<std::size_t> uses;
  for (const std::size_t i : run_.uses) {
    if (!stays_[i]) uses.push_back(i);
  }
  if (!run_.uses.empty()) return uses;
  std::size_t behind = run_.parameters.size();  // the first trained one
  for (std::size_t i = run_.parameters.size(); i-- > 0;) behind = run_.parameters[i].trainable ? i + 1 : behind;
  for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
    if (!stays_[i]) uses.push_back(i);
  }
  for (std::size_t at = uses.size(); at-- > 0 && uses[at] >= behind;) uses.push_back(uses[at]);
  return uses;
}

std::int64_t Stage3Plan::follow(const std::function<void(const Fetch&)>& fetched) const {
  const ZeroConfig& zero = run_.zero;
  std::vector<std::int64_t> numels;
  for (const PlannedParameter& parameter : run_.parameters) numels.push_back(parameter.numel);
  UseTrace trace(numels,
                 {zero.stage3_max_live_parameters, zero.stage3_max_reuse_distance, zero.stage3_prefetch_bucket_size});
  const std::vector<std::size_t> uses = uses_of_a_pass();
  trace.begin();
  for (const std::size_t i : uses) trace.use(i);
  trace.end();

  // The second copy of what is frozen stays; what is trained has none when a step begins.
  std::vector<bool> here(numels.size()), copied;
  for (const PlannedParameter& parameter : run_.parameters) {
    copied.push_back(secondary_ranks() > 1 && !parameter.trainable);
  }
  std::int64_t live = 0, most = 0;
  for (std::int64_t pass = 0; pass < std::min(run_.micro_steps, kPassesFollowed); ++pass) {
    const std::int64_t times = pass + 1 < kPassesFollowed ? 1 : run_.micro_steps - pass;
    const auto fetch = [&](const std::vector<std::size_t>& parameters) {
      Fetch together{{}, {}, times};
      for (const std::size_t i : parameters) {
        (copied[i] ? together.from_second : together.from_all).push_back(i);
        copied[i] = secondary_ranks() > 1;
        here[i] = true;
        live += numels[i];
      }
      fetched(together);
    };
    trace.begin();
    for (const std::size_t i : uses) {
      const std::size_t position = trace.use(i);
      if (!here[i]) fetch({i});
      fetch(trace.ahead(live, [&](std::size_t one) { return !here[one]; }));
      most = std::max(most, live);
      if (trace.is_kept(position)) continue;
      here[i] = false;
      live -= numels[i];
    }
    trace.end();
  }
  return most;
}

}  // namespace capstan
