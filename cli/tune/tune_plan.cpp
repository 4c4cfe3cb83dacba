#include "cli/tune/tune_plan.hpp"

#include <algorithm>

#include "cli/limits.hpp"
#include "cli/model_shapes.hpp"
#include "core/engine/planned_pass.hpp"
#include "core/engine/progress_report.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"
#include "core/zero/memory_plan.hpp"
#include "core/zero/partition.hpp"

namespace capstan::cli {
namespace {

/// A first guess at a machine, whose proportions are all that counts once something was measured: floating-point
/// operations a second of one process, seconds of a micro-batch whatever its size, of a byte on the wire, of a call, of
/// an updated element.
constexpr double kOperations = 3e10, kMicroBatch = 2e-3, kByte = 1e-9, kHiddenByte = 5e-10, kCall = 1e-4,
                 kUpdate = 2e-9;
constexpr std::int64_t kTokens = 128;  // of a sample, where nobody says

/// What is there for a process: the least of what limits it.
std::pair<std::int64_t, std::string> machine_limit(const TuneSetup& setup) {
  std::vector<Limit> limits;
  if (setup.config.device == "cpu") {
    for (Limit limit : host_memory_limits()) {
      limit.bytes /= static_cast<std::uint64_t>(setup.processes);
      limits.push_back(limit);
    }
    for (const Limit& limit : process_memory_limits()) limits.push_back(limit);
  } else {
    limits = gpu_memory();
  }
  const auto least =
      std::min_element(limits.begin(), limits.end(), [](const Limit& a, const Limit& b) { return a.bytes < b.bytes; });
  if (least == limits.end()) return {0, ""};
  return {static_cast<std::int64_t>(least->bytes), least->what};
}

bool recomputes(const Config& config, const PluginIndex& plugins) {
  return std::any_of(config.observers.begin(), config.observers.end(), [&](const ComponentChoice& choice) {
    const ComponentRef found = plugins.find(choice.kind, choice.type);
    return found && found.component->section == "activation_checkpointing";
  });
}

std::int64_t tokens_of(const Config& config, const Model& model) {
  if (config.run.sequence_length) return *config.run.sequence_length;
  const Json facts = model.describe();
  const Json* length = facts.find("sequence_length");
  return length && length->is_integer() ? length->as_integer() : kTokens;
}

CostTerms first_guess(double parameters, double tokens) {
  return {kMicroBatch, 6 * parameters * tokens / kOperations, kByte, kHiddenByte, kCall, kUpdate};
}

std::string first_error(const ConfigReading& reading) {
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) return problem.path + ": " + problem.message;
  }
  return "";
}

std::string joined_buckets(const Partition& partition) {
  std::string text;
  for (const Bucket& bucket : partition.buckets()) text += std::to_string(bucket.end) + ",";
  return text;
}

}  // namespace

PointPlanner::PointPlanner(const TuneSetup& setup, std::int64_t limit, std::optional<ModelEstimate> estimate,
                           ActivationBytes activations)
    : setup_(setup), limit_(limit), limit_origin_("--limit"), estimate_(estimate), program_activations_(activations) {
  if (limit_ == 0) std::tie(limit_, limit_origin_) = machine_limit(setup);
  facts_.world = setup.processes;
  facts_.parameters_offloaded = setup.config.zero.offload_param.has_value();
  facts_.reduces_scattered_values = setup.config.zero.zero_quantized_gradients;
  if (!setup.program.empty()) {
    facts_.trainable = estimate_ ? estimate_->parameters : 0;
    guess_ = first_guess(estimate_ ? static_cast<double>(estimate_->parameters) : 1e6, kTokens);
    return;
  }
  if (!setup.config.run.model) {
    throw ConfigError("capstan.model: not given. Name a model with --model, for instance --model gpt:tiny.");
  }
  model_.emplace(model_shapes(setup.config, setup.plugins, false));
  double elements = 0;
  for (const NamedTensor& parameter : model_->parameters()) {
    facts_.sizes.push_back(parameter.tensor.numel());
    elements += static_cast<double>(parameter.tensor.numel());
    if (parameter.tensor.requires_grad()) facts_.trainable += parameter.tensor.numel();
  }
  guess_ = first_guess(elements, static_cast<double>(tokens_of(setup.config, *model_)));
}

std::string PointPlanner::limit_text() const {
  return limit_ == 0 ? "no limit is known"
                     : bytes_text(static_cast<std::uint64_t>(limit_)) + " a process (" + limit_origin_ + ")";
}

PointPlan PointPlanner::plan(const TuningPoint& point) {
  PointPlan plan;
  plan.point = point;
  const AutotuningConfig& tuning = setup_.tuning();
  if (point.train_batch < tuning.min_train_batch_size) {
    plan.excluded = "its batch of " + std::to_string(point.train_batch) +
                    " is below autotuning.min_train_batch_size, " + std::to_string(tuning.min_train_batch_size) + ".";
    return plan;
  }
  ConfigContext context;
  context.world_size = setup_.processes;
  context.check_only = true;
  context.takes_steps = false;
  const ConfigReading reading =
      read_config({point_document(setup_, point).dump(), point.name, false}, context, setup_.plugins);
  if (!reading.config) {
    plan.excluded = "is no valid configuration: " + first_error(reading);
    return plan;
  }
  if (model_) {
    plan_model(point, *reading.config, plan);
  } else {
    plan_estimate(point, plan);
  }
  return plan;
}

const ActivationBytes& PointPlanner::activations(const Config& config, bool recomputing) {
  const auto known = activations_.find(recomputing);
  if (known != activations_.end()) return known->second;
  const auto bytes = [&](std::int64_t micro_batch) {
    Config one = config;
    one.batch.micro_batch_size = micro_batch;
    Model model = model_shapes(one, setup_.plugins, false);
    const PlannedPass pass = follow_pass(model, one, setup_.plugins, recomputing);
    return pass.unknown.empty() ? static_cast<double>(pass.peak_bytes) : 0.0;
  };
  return activations_[recomputing] = activation_line(1, bytes(1), 2, bytes(2));
}

void PointPlanner::plan_model(const TuningPoint& point, const Config& config, PointPlan& plan) {
  const PlannedRun run = planned_run(*model_, config, setup_.plugins, setup_.processes);
  const ZeroChoice choice = configured_choice(config);
  const MemoryPlan memory = plan_memory(run, choice);
  std::vector<std::pair<std::string, double>> lines = {
      {"the program and its libraries", static_cast<double>(host_memory().resident)}};
  const bool host = config.device == "cpu";
  if (!host) lines.clear();
  for (const PlannedBytes& item : memory.items) {
    if (item.tier == MemoryTier::kMemory || (host && item.tier == MemoryTier::kHost)) {
      lines.emplace_back(item.what, static_cast<double>(item.bytes));
    }
  }
  const std::string samples = std::to_string(point.micro_batch) + (point.micro_batch == 1 ? " sample" : " samples");
  lines.emplace_back("what forward keeps of " + samples,
                     activations(config, recomputes(config, setup_.plugins)).at(point.micro_batch));
  exclude_above_limit(lines, plan);

  StepFacts step;
  step.micro_batches = static_cast<double>(point.accumulation);
  step.samples = static_cast<double>(point.accumulation * point.micro_batch);
  step.overlaps = config.zero.overlap_comm;
  step.updated = static_cast<double>(run.trainable_elements()) / (config.zero.stage > 0 ? setup_.processes : 1);
  if (setup_.processes > 1) {
    for (const PlannedTraffic& row : plan_traffic(run, config.zero.stage)) step.bytes += static_cast<double>(row.bytes);
    const Partition partition = planned_partition(run);
    step.calls = static_cast<double>(partition.buckets().size());
    if (config.zero.stage == 1 || config.zero.stage == 2) {
      step.calls += static_cast<double>(partition.numel()) /
                    static_cast<double>(
                        std::max<std::int64_t>(1, std::min(partition.numel(), config.zero.allgather_bucket_size)));
    }
    // What the buckets are, not which number made them.
    plan.effect = joined_buckets(partition);
  }
  plan.terms = cost_terms(step);
}

void PointPlanner::plan_estimate(const TuningPoint& point, PointPlan& plan) const {
  StepFacts step;
  step.micro_batches = static_cast<double>(point.accumulation);
  step.samples = static_cast<double>(point.accumulation * point.micro_batch);
  if (estimate_) {
    const auto parameters = static_cast<double>(estimate_->parameters);
    exclude_above_limit({{"parameters, gradients and optimizer of stage " + std::to_string(point.stage),
                          estimated_bytes(*estimate_)[static_cast<std::size_t>(point.stage)]},
                         {"activations of " + std::to_string(point.micro_batch) + " samples",
                          program_activations_.at(point.micro_batch)}},
                        plan);
    const double ranks = setup_.processes;
    step.updated = point.stage > 0 ? parameters / ranks : parameters;
    if (ranks > 1) {
      // A reduce-scatter and an all-gather; at stage 3 another gather for backward.
      const double sent = 4 * parameters * (ranks - 1) / ranks;
      step.bytes = sent * (point.stage == 3 ? 2 + static_cast<double>(point.accumulation) : 2);
      step.calls = point.stage == 3 ? 3 : 2;
    }
  }
  plan.terms = cost_terms(step);
}

/// The line at which the sum of the plan passes the limit is the one that breaks it.
void PointPlanner::exclude_above_limit(const std::vector<std::pair<std::string, double>>& lines,
                                       PointPlan& plan) const {
  double sum = 0, before = 0;
  const std::pair<std::string, double>* breaks = nullptr;
  for (const auto& line : lines) {
    before = breaks ? before : sum;
    sum += line.second;
    if (!breaks && limit_ > 0 && sum > static_cast<double>(limit_)) breaks = &line;
  }
  plan.bytes = static_cast<std::int64_t>(sum);
  if (!breaks) return;
  plan.excluded = "needs " + bytes_text(static_cast<std::uint64_t>(sum)) + " of " +
                  bytes_text(static_cast<std::uint64_t>(limit_)) + ": '" + breaks->first + "', " +
                  bytes_text(static_cast<std::uint64_t>(breaks->second)) + ", on top of " +
                  bytes_text(static_cast<std::uint64_t>(before)) + ".";
}

}  // namespace capstan::cli
