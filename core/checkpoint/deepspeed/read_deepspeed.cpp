#include "core/checkpoint/deepspeed/read_deepspeed.hpp"

#include <ATen/ops/full.h>

#include <algorithm>

#include "core/checkpoint/deepspeed/optimizer_members.hpp"
#include "core/checkpoint/deepspeed/reading.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace deepspeed {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000'000, kMostSamples = 1'000'000'000'000'000, kMostRanks = 1'000'000;

std::vector<std::unique_ptr<TorchFile>> open_all(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::unique_ptr<TorchFile>> files;
  for (const auto& path : paths) files.push_back(std::make_unique<TorchFile>(path));
  return files;
}

Counters counters_of(const TorchValue& root) {
  Counters counters;
  counters.steps = root.at("global_steps").integer(0, kMostSteps);
  counters.skipped = root.at("skipped_steps").integer(0, counters.steps);
  if (const auto samples = root.find("global_samples")) counters.samples = samples->integer(0, kMostSamples);
  counters.world = root.at("dp_world_size").integer(1, kMostRanks);
  return counters;
}

/// Refuses tensor and pipeline parallelism, of which one rank's files tell as well.
void check_parallelism(const TorchValue& root) {
  const auto check = [](const std::optional<TorchValue>& size) {
    if (!size || size->integer(1, kMostRanks) == 1) return;
    size->fail("is " + size->described() +
               ": the run had tensor or pipeline parallelism, and checkpoints of such runs are not read.");
  };
  check(root.find("mp_world_size"));
  const auto sizes = root.find("checkpoint_parallel_dimensions");
  for (const char* name : {"tp_degree", "pp_degree"}) check(sizes ? sizes->find(name) : std::nullopt);
}

/// The ZeRO stage of the optimizer's files; BF16_Optimizer has none and partitions as stage 1.
std::int64_t stage_of(const Reading& reading) {
  if (reading.optimizer.empty()) return 0;
  const auto stage = optimizer_dicts(reading).front().find("zero_stage");
  return stage ? stage->integer(1, 3) : 1;
}

/// All files are of one run of as many ranks.
void check_ranks(const Reading& reading, std::int64_t stage) {
  const std::int64_t world = reading.counters.world;
  const auto files = static_cast<std::int64_t>(reading.optimizer.size());
  if (stage > 0 && files != world) {
    throw RuntimeFault(reading.where() + ": there are " + std::to_string(files) +
                       " files *_optim_states.pt, and dp_world_size of the model's file is " + std::to_string(world) +
                       ". Files of some ranks are missing, or left of another run.");
  }
  const auto models = static_cast<std::int64_t>(reading.model.size());
  if (const std::int64_t needed = reading.partitions_model ? world : 1; models != needed) {
    throw RuntimeFault(reading.where() + ": there are " + std::to_string(models) + " files *_model_states.pt, and " +
                       std::to_string(needed) +
                       " are expected. Files of some ranks are missing, or left of another run.");
  }
  for (const TorchValue& dict : stage > 0 ? optimizer_dicts(reading) : std::vector<TorchValue>()) {
    const TorchValue count = dict.at("partition_count");
    const std::vector<TorchValue> counts = count.is_list() ? count.items() : std::vector<TorchValue>{count};
    for (const TorchValue& one : counts) {
      if (one.integer(1, kMostRanks) == world) continue;
      one.fail("is " + one.described() + ", and dp_world_size of the model's file is " + std::to_string(world) +
               ". The files are of different runs.");
    }
    const auto here = dict.find("zero_stage");
    if (here && here->integer(1, 3) != stage) here->fail("is another stage than in rank 0's file.");
  }
  for (const auto& file : reading.model) {
    const TorchValue steps = TorchValue::root_of(*file).at("global_steps");
    if (steps.integer(0, kMostSteps) == reading.counters.steps) continue;
    steps.fail("is " + steps.described() + ", and in rank 0's file " + std::to_string(reading.counters.steps) +
               ". The files are of different saves.");
  }
}

void read_optimizer(Reading& reading, std::int64_t stage) {
  if (stage == 0) return read_whole_optimizer(reading);
  stage == 3 ? read_parameter_partitions(reading) : read_flat_partitions(reading);
}

/// An optimizer that has updated something has states, but for plain SGD.
void check_states_are_there(const Reading& reading) {
  if (reading.has_states || reading.counters.updates() == 0 || reading.optimized.empty()) return;
  const auto config = reading.model_root().find("ds_config");
  const auto optimizer = config ? config->find("optimizer") : std::nullopt;
  const auto type = optimizer ? optimizer->find("type") : std::nullopt;
  if (!type || !type->is(Pickle::Kind::kText)) return;
  std::string name = type->text();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name == "sgd") return;
  throw RuntimeFault(reading.where() + ": after " + std::to_string(reading.counters.updates()) +
                     " updates it has no states of the optimizer " + type->described() +
                     ". The files are damaged: load another checkpoint.");
}

/// Capstan's optimizers count steps a parameter, also where DeepSpeed's do not.
void add_steps(Reading& reading) {
  for (const std::string& name : reading.optimized) {
    const auto found = reading.steps.find(name);
    const std::int64_t step = found == reading.steps.end() ? reading.counters.updates() : found->second;
    reading.contents.tensors.push_back({name, "step", {1}, 0, at::full({1}, step, host_options(at::kLong))});
  }
}

}  // namespace
}  // namespace deepspeed

CheckpointContents read_deepspeed(const std::filesystem::path& folder,
                                  const std::function<bool(const CheckpointTensor&)>& takes,
                                  const TrainedNames& trained, bool with_tensors) {
  using namespace deepspeed;
  const DeepSpeedFolder files = find_deepspeed_files(folder);
  Reading reading{.folder = files,
                  .model = open_all(files.model_files),
                  .optimizer = open_all(files.optimizer_files),
                  .takes = takes,
                  .trained = trained,
                  .with_tensors = with_tensors};
  const TorchValue root = reading.model_root();
  if (!root.is(Pickle::Kind::kDict)) root.refuse("a dict");
  reading.counters = counters_of(root);
  check_parallelism(root);
  if (files.universal) {
    read_universal(reading);
    check_ranks(reading, 0);
  } else {
    const std::int64_t stage = stage_of(reading);
    reading.partitions_model = stage == 3;
    check_ranks(reading, stage);
    read_optimizer(reading, stage);
  }
  check_states_are_there(reading);
  add_steps(reading);
  read_rest_of_model(reading);
  Json state = run_state(reading);
  for (const auto& [name, value] : reading.contents.state.as_object()) state[name] = value;
  reading.contents.state = std::move(state);
  return std::move(reading.contents);
}

}  // namespace capstan
