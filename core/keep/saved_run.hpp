#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/state_reader.hpp"
#include "core/components/progress.hpp"
#include "core/data/sampler.hpp"
#include "core/keep/load_options.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/precision/loss_scaler.hpp"

namespace capstan {

/// The format of state.json that this release writes and reads.
inline constexpr std::int64_t kStateFormat = 1;

/// What state.json says of a run, read and checked as a whole, so that nothing of it can fail once an engine has begun
/// to take it over.
struct SavedRun {
  struct Component {
    std::string type, state;
  };
  std::string run;                // Engine::run_id(); empty: a release saved it that had none
  std::string writer;             // "DeepSpeed 0.19.8"; empty: Capstan
  bool without_frozen = false;    // parameters that were not trained are left out
  bool starts_optimizer = false;  // states of the optimizer that are missing begin as those of a new run
  LoadOptions options;            // how much of the run is taken over; state.json says nothing of it
  bool counts_samples = true;     // else progress.global_samples is not known, and 0
  Progress progress;
  std::int64_t world_size = 1;
  std::optional<LossScaler::State> loss_scale;  // absent: the writer scaled no losses
  std::vector<double> base_lrs;                 // one a parameter group
  /// The numbers that the program had set, one map a parameter group; absent in older checkpoints.
  std::optional<std::vector<ParameterGroups::Written>> group_numbers;
  std::optional<Component> optimizer, scheduler;
  std::int64_t schedule_begins_at = 0;  // the update that is the schedule's first one
  Json observers = Json::object();      // texts, by state_key()
  Json compressions = Json::object();   // texts, by state_key()
  std::optional<Sampler::Saved> sampler;
  std::map<std::string, at::Tensor> generators;  // rank 0's states of the generators as bytes, by device
};

/// Throws RuntimeFault naming the file and the member.
SavedRun read_saved_run(const StateReader& state);

/// What read_saved_run() reads of a sampler.
Json sampler_json(const Sampler::Saved& saved);

/// Bytes as hexadecimal digits.
std::string hex_of(const at::Tensor& bytes);

}  // namespace capstan
