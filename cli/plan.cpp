#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/layout_maker.hpp"
#include "cli/model_shapes.hpp"
#include "cli/plan_text.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/config/resolve/command_line_problems.hpp"
#include "core/config/resolve/launcher_world.hpp"
#include "core/config/tools/gpu_verdict.hpp"
#include "core/elastic/world.hpp"
#include "core/engine/planned_run.hpp"
#include "core/engine/progress_report.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

std::string precision_text(const Config& config) {
  const auto name = [](Precision precision) {
    return precision == Precision::kFp16 ? "fp16" : precision == Precision::kBf16 ? "bf16" : "fp32";
  };
  return std::string(name(config.precision.compute)) + ", gradients added up in " + config.precision.grad_accum_dtype;
}

std::string lacks(const ZeroChoice& choice, const Config& config, const PluginIndex& plugins) {
  const bool needs_nvme = (choice.optimizer == MemoryTier::kDisk && !config.optimizer_offload) ||
                          (choice.parameters == MemoryTier::kDisk && !config.parameter_offload);
  return needs_nvme && !plugins.find("offload", "nvme") ? "a plugin 'nvme' of kind offload" : "";
}

/// A checkpoint: masters and optimizer states of everything, frozen parameters and buffers as they are.
std::int64_t checkpoint_bytes(const PlannedRun& run) {
  std::int64_t bytes = run.buffer_bytes + run.model_state_bytes;
  for (const PlannedParameter& parameter : run.parameters) {
    const std::int64_t of_master = parameter.compressed ? 4 : run.master_bytes;
    bytes += parameter.trainable ? parameter.numel * of_master + parameter.bytes_of_states(parameter.numel)
                                 : parameter.numel * run.compute_bytes;
  }
  return bytes;
}

/// What a process keeps in shared memory where elasticity is on: two snapshots of its part of a checkpoint, and as many
/// of each partner's. Rank 0's, which has most: what all ranks have alike stands in its part.
std::int64_t snapshot_bytes(const PlannedRun& run, const Config& config) {
  if (!config.elasticity.enabled) return 0;
  std::int64_t cut = 0, whole = run.buffer_bytes + run.model_state_bytes;
  for (const PlannedParameter& parameter : run.parameters) {
    if (parameter.trainable) {
      cut += parameter.numel * 4 + parameter.bytes_of_states(parameter.numel);
    } else {
      (config.zero.stage == 3 ? cut : whole) += parameter.numel * run.compute_bytes;
    }
  }
  const std::int64_t hosts = run.world / run.local_world;
  const std::int64_t copies = 1 + std::min(config.run.elastic.partners, hosts - 1);
  return 2 * copies * ((cut + run.world - 1) / run.world + whole);
}

/// The folder of a store: the first of its arguments that is a path.
std::string folder_of(const std::optional<ComponentChoice>& store, const PluginIndex& plugins) {
  const ComponentRef found = store ? plugins.find(store->kind, store->type, store->device) : ComponentRef{};
  if (!found) return "";
  for (const KeySpec& param : found.component->params) {
    const Json* path = param.type == KeySpec::Type::kPath ? store->params.find(param.name) : nullptr;
    if (path && path->is_string()) return path->as_string();
  }
  return "";
}

/// What each folder of offload has to hold for a process.
std::map<std::string, std::int64_t> offloaded_bytes(const Plan& plan, const Config& config,
                                                    const PluginIndex& plugins) {
  std::map<std::string, std::int64_t> bytes;
  for (const PlannedBytes& item : plan.configured.memory.items) {
    const bool of_parameters = item.what == "parameters";
    const std::string folder = folder_of(of_parameters ? config.parameter_offload : config.optimizer_offload, plugins);
    if (item.tier == MemoryTier::kDisk && !folder.empty()) bytes[folder] += item.bytes;
  }
  return bytes;
}

std::vector<PlannedLimit> limits_of(const Plan& plan, const Config& config, const PluginIndex& plugins) {
  std::vector<PlannedLimit> limits;
  for (const Limit& limit : host_memory_limits()) {
    limits.push_back({plan.process_bytes() * plan.run.local_world, limit});
  }
  for (const Limit& limit : process_memory_limits()) limits.push_back({plan.process_bytes(), limit});
  const auto disk = [&](const std::string& path, std::int64_t needed, const char* what) {
    std::optional<Limit> limit = free_disk(path);
    if (!limit) return;
    limit->what += what;
    limits.push_back({needed, *limit});
  };
  for (const Limit& gpu : plan.on_cpu() ? std::vector<Limit>() : gpu_memory()) {
    limits.push_back({plan.configured.memory.peak(MemoryTier::kMemory), gpu});
  }
  for (const auto& [path, bytes] : offloaded_bytes(plan, config, plugins)) {
    disk(path, bytes * plan.run.local_world, ", offload");
  }
  if (plan.snapshots > 0) disk(WorldFolder::place_in_memory(), plan.snapshots * plan.run.local_world, ", snapshots");
  disk(config.run.save_dir.empty() ? std::filesystem::current_path().string() : config.run.save_dir, plan.checkpoint,
       ", a checkpoint");
  return limits;
}

/// Where the configuration leaves the number of processes to the launcher, it is what the command line says.
Config read(const PlanArguments& arguments, PluginIndex& plugins) {
  ConfigContext context = config_context(arguments.config);
  const LauncherWorld launcher = launcher_world();
  context.world_size = arguments.world > 0 ? arguments.world : launcher.size;
  context.world_size_origin = arguments.world > 0 ? "--world" : launcher.origin;
  context.check_only = true;
  context.takes_steps = false;
  const ConfigText text = config_text(arguments.config);
  Config config = load_config(text, context, plugins);
  if (const auto notice = refused_on_gpus(text, context, config, plugins)) log::info(shown(*notice, text, context));
  if (!config.run.model) {
    throw ConfigError(
        "capstan.model: not given. Name a model with --model, for instance --model gpt:124m, or in the configuration: "
        "\"capstan\": {\"model\": \"gpt:124m\"}. 'capstan plugins list' shows the models.");
  }
  return config;
}

/// A batch of one sample a process, where nothing says how large it is. False where something does.
bool assume_batch(BatchConfig& batch) {
  if (batch.micro_batch_size > 0) return false;
  batch.micro_batch_size = 1;
  batch.gradient_accumulation_steps = std::max<std::int64_t>(batch.gradient_accumulation_steps, 1);
  batch.train_batch_size = batch.gradient_accumulation_steps * batch.world_size;
  return true;
}

int local_world_of(const PlanArguments& arguments, int world) {
  const int local = arguments.local_world > 0 ? arguments.local_world : world;
  if (local <= world && world % local == 0) return local;
  throw UsageError("--local-world: " + std::to_string(local) + " processes a host do not make up " +
                   std::to_string(world) + ". Give a divisor of it.");
}

bool recomputes(const Config& config, const PluginIndex& plugins) {
  return std::any_of(config.observers.begin(), config.observers.end(), [&](const ComponentChoice& choice) {
    const ComponentRef found = plugins.find(choice.kind, choice.type);
    return found && found.component->section == "activation_checkpointing";
  });
}

/// PlannedRun::parameters are those of the model's that are floating-point.
std::vector<std::size_t> places_in_run(const Model& model, const std::vector<std::size_t>& parameters) {
  std::vector<std::size_t> places, found;
  std::size_t next = 0;
  for (const NamedTensor& parameter : model.parameters()) {
    places.push_back(next);
    if (at::isFloatingType(parameter.tensor.scalar_type())) ++next;
  }
  for (const std::size_t i : parameters) found.push_back(places[i]);
  return found;
}

std::optional<SparsePart> sparse_part(const PlannedPass& pass, const Config& config, const PluginIndex& plugins) {
  if (!config.attention) return std::nullopt;
  SparsePart part{config.attention->type, config.attention->where};
  const LayoutMaker maker(config, plugins);
  for (const PlannedAttention& call : pass.attention) {
    BlockLayout layout = maker.layout(call.heads, call.tokens, call.causal);
    layout.drop_later();
    part.calls += 1;
    part.scores += static_cast<double>(call.batch) * layout.scores();
    std::fill(layout.cells.begin(), layout.cells.end(), 1);
    layout.drop_later();
    part.dense_scores += static_cast<double>(call.batch) * layout.scores();
  }
  return part;
}

}  // namespace

int plan(const PlanArguments& arguments) {
  PluginIndex plugins;
  Config config = read(arguments, plugins);
  Plan plan;
  plan.assumes_batch = assume_batch(config.batch);
  const int local_world = local_world_of(arguments, config.batch.world_size);
  Model model = model_shapes(config, plugins, arguments.with_values);
  plan.run = planned_run(model, config, plugins, local_world);
  plan.plain = follow_pass(model, config, plugins, false);
  plan.attention = sparse_part(plan.plain, config, plugins);
  if (recomputes(config, plugins)) {
    plan.recomputing = follow_pass(model, config, plugins, true);
    plan.run.uses = places_in_run(model, plan.recomputing->uses);
  }
  plan.device = config.device;
  plan.micro_batch = config.batch.micro_batch_size;
  plan.model = config.run.model->type;
  plan.optimizer = config.optimizer ? config.optimizer->type : "no optimizer";
  plan.precision = precision_text(config);
  plan.program = static_cast<std::int64_t>(host_memory().resident);
  plan.checkpoint = checkpoint_bytes(plan.run);
  plan.snapshots = snapshot_bytes(plan.run, config);
  const auto planned = [&](const ZeroChoice& choice) {
    return PlannedChoice{choice, plan_memory(plan.run, choice), lacks(choice, config, plugins)};
  };
  plan.configured = planned(configured_choice(config));
  std::vector<ZeroChoice> choices = zero_choices();
  // A store of capstan.offload goes with stages at which DeepSpeed's keys have none.
  if (std::find(choices.begin(), choices.end(), plan.configured.choice) == choices.end())
    choices.insert(choices.begin(), plan.configured.choice);
  for (const ZeroChoice& choice : choices) plan.choices.push_back(planned(choice));
  for (int stage = 0; stage <= 3; ++stage) plan.traffic.push_back(plan_traffic(plan.run, stage));
  plan.limits = limits_of(plan, config, plugins);
  plan.gpus = gpu_memory();
  print(arguments.json ? plan_json(plan).dump(2) + "\n" : plan_text(plan));
  return 0;
}

}  // namespace capstan::cli
