// What an engine does when several processes train one model.

#include "core/engine/ranks.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "core/comm/startup_check.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/memory/deferred_values.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/model/dtype_names.hpp"
#include "core/model/parameter_classes.hpp"
#include "core/parameters/run_needs.hpp"

namespace capstan {
namespace {

RunIdentity facts_of(const Model& model, const Config& config) {
  RunIdentity facts;
  const TorchIdentity torch = running_torch();
  facts.libtorch = torch.version + " (build " + torch.build_id + ")";
  facts.model = model.description();
  for (const auto* list : {&model.parameters(), &model.buffers()}) {
    for (const NamedTensor& named : *list) {
      facts.parameters.push_back(named.name + " " + c10::toString(named.tensor.scalar_type()) + " " +
                                 c10::str(named.tensor.sizes()) + (named.trained() ? "" : " fixed") +
                                 (model.deferred() && model.deferred()->has(named.tensor) ? " without values" : ""));
    }
  }
  facts.config = config.effective;
  return facts;
}

void check_possible(const Config& config, const Communicator& communicator) {
  if (config.batch.world_size != communicator.size()) {
    throw RuntimeFault("the configuration was read for " + std::to_string(config.batch.world_size) +
                       " processes, and there are " + std::to_string(communicator.size()) +
                       ". Read it with ConfigContext::world_size set to the communicator's size.");
  }
}

void give_values_of_rank_0(const Model& model, Communicator& communicator) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> originals, contiguous;
  for (const auto* list : {&model.parameters(), &model.buffers()}) {
    for (const NamedTensor& named : *list) {
      if (named.tensor.numel() == 0 || (model.deferred() && model.deferred()->has(named.tensor))) continue;
      originals.push_back(named.tensor.detach());
      contiguous.push_back(originals.back().contiguous());
    }
  }
  communicator.broadcast("start: values of the model", contiguous, 0);
  for (std::size_t i = 0; i < originals.size(); ++i) {
    if (!originals[i].is_contiguous()) originals[i].copy_(contiguous[i]);
  }
}

/// Warns which parameters the model's constructor forced to be built whole.
void warn_of_parameters_built_whole(const Model& model) {
  std::string names, reader;
  int count = 0;
  for (const NamedTensor& parameter : model.parameters()) {
    const std::string found = model.deferred()->reader(parameter.tensor);
    if (found.empty()) continue;
    if (reader.empty()) reader = found;
    if (++count <= 3) names += (names.empty() ? "'" : ", '") + parameter.name + "'";
  }
  if (count == 0) return;
  log::warning("ZeRO stage 3: the model's construction reads values of " + std::to_string(count) +
               (count == 1 ? " parameter" : " parameters") + ", which therefore stand whole until the engine has its " +
               "parts: " + names + (count > 3 ? ", ..." : "") + " (operator " + reader + ").");
}

/// ZeRO++: what travels less far or in fewer bits at stage 3.
void set_zeropp(const Config& config, const Communicator& communicator, ShardingOptions& options) {
  const int ranks = communicator.size();
  options.parts.quantized = config.zero.zero_quantized_weights;
  options.parts.secondary_ranks = static_cast<int>(std::min<std::int64_t>(config.zero.zero_hpz_partition_size, ranks));
  options.gradients.quantized = config.zero.zero_quantized_gradients;
  if (config.zero.zeropp_loco_param) {
    options.gradients.feedback =
        ErrorFeedback{config.zero.zeropp_loco_param->err_beta, config.zero.zeropp_loco_param->reset_T};
  }
  if (options.gradients.quantized && communicator.ranks_per_host() == ranks && communicator.rank() == 0) {
    log::info(
        "zero_optimization.zero_quantized_gradients: all processes are on one host, where gradients travel as "
        "they are.");
  }
}

}  // namespace

bool is_sharded(const Config& config, const Communicator& communicator) {
  return communicator.size() > 1 || (config.parameter_offload && config.zero.stage == 3);
}

Model join_ranks(Model model, const Config& config, Communicator& communicator) {
  check_possible(config, communicator);
  if (model.deferred() && (!is_sharded(config, communicator) || config.zero.stage < 3)) {
    model.deferred()->make([](const c10::Storage&) { return false; });
    model.set_deferred(nullptr);
  }
  if (model.deferred()) {
    for (const NamedTensor& buffer : model.buffers()) model.deferred()->make(buffer.tensor);
  }
  if (communicator.size() == 1) {
    if (model.deferred()) warn_of_parameters_built_whole(model);
    return model;
  }
  check_same_run(communicator, facts_of(model, config));
  if (model.deferred() && communicator.rank() == 0) warn_of_parameters_built_whole(model);
  give_values_of_rank_0(model, communicator);
  return model;
}

double mean_over_ranks(Communicator& communicator, double sum, double weight) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < communicator.size(); ++rank) parts.push_back(at::empty({2}, at::kDouble));
  auto* mine = parts[static_cast<std::size_t>(communicator.rank())].mutable_data_ptr<double>();
  mine[0] = sum;
  mine[1] = weight;
  communicator.all_gather("evaluation", parts);
  double total = 0, all = 0;
  for (const at::Tensor& part : parts) {
    total += part.const_data_ptr<double>()[0];
    all += part.const_data_ptr<double>()[1];
  }
  return all > 0 ? total / all : 0.0;
}

std::vector<GradientTransport> EngineParts::gradient_transports() const {
  const ParameterClasses classes(model);
  const bool sparse = config.communication.sparse_gradients;
  std::vector<std::string> low;
  if (config.torch_autocast.enabled && !config.precision.autocast_dtype.empty()) {
    low = config.torch_autocast.lower_precision_safe_modules;
    const auto origin = config.origins.find("torch_autocast.lower_precision_safe_modules");
    const bool given = origin != config.origins.end() && origin->second != "default";
    for (const std::string& name : low) {
      if (!given || classes.has(name)) continue;
      log::warning("torch_autocast.lower_precision_safe_modules: no module of model '" + model.description() +
                   "' is a '" + name + "'. Its classes: " + classes.text() + ".");
    }
  }
  if (!sparse && low.empty()) return {};
  std::vector<GradientTransport> transports;
  for (const NamedTensor& parameter : model.parameters()) {
    if (!parameter.trained()) continue;
    GradientTransport& transport = transports.emplace_back(GradientTransport{communication_dtype(config), 0});
    const std::string type = classes.of(parameter.name);
    if (std::find(low.begin(), low.end(), type) != low.end()) {
      transport.type = dtype_named(config.precision.autocast_dtype);
    }
    const bool embedding = type == "torch.nn.Embedding" || type == "torch.nn.EmbeddingBag";
    if (sparse && embedding && parameter.tensor.dim() == 2 && parameter.tensor.numel() > 0)
      transport.row = parameter.tensor.size(-1);
  }
  return transports;
}

ShardingOptions EngineParts::sharding_options() {
  const double ranks = communicator->size();
  ShardingOptions options;
  options.communicator = communicator;
  options.reduce_bucket_size = config.zero.reduce_bucket_size;
  options.gather_bucket_size = config.zero.allgather_bucket_size;
  options.gather_by_broadcast = !config.zero.allgather_partitions;
  options.overlap = config.zero.overlap_comm;
  options.bind_thread = [this] { accelerator->bind_thread(); };
  options.whole_parameters = needs_whole_parameters(manifest());
  GradientReducer::Options& gradients = options.gradients;
  gradients.stage = can_be_partitioned(manifest()) ? config.zero.stage : 0;
  gradients.during_backward =
      config.zero.overlap_comm || config.zero.stage >= 2 || (config.zero.stage == 1 && config.zero.grad_hooks);
  gradients.accumulation = dtype_named(config.precision.grad_accum_dtype);
  const CommunicationConfig& communication = config.communication;
  gradients.sparse = communication.sparse_gradients;
  if (communicator->size() == 1) return options;  // nothing travels
  gradients.communication = communication_dtype(config);
  gradients.transports = gradient_transports();
  if (gradients.stage == 3) set_zeropp(config, *communicator, options);
  gradients.sparse_rows = takes_sparse_rows(manifest());
  if (communication.gradient_allreduce_op == "sum") return options;
  const double factor = communication.gradient_predivide_factor;
  gradients.scale_before_sum = communication.prescale_gradients ? 1 / ranks : 1 / factor;
  gradients.scale_after_sum = communication.prescale_gradients ? 1 : factor / ranks;
  return options;
}

int Engine::rank() const { return state_->communicator->rank(); }
int Engine::world_size() const { return state_->communicator->size(); }
void Engine::ask_to_stop() { state_->stop_asked = true; }
bool Engine::stop_agreed() const { return state_->stop_agreed; }
bool Engine::any_rank(bool asks) {
  if (world_size() == 1) return asks;
  at::Tensor count = at::empty({1}, at::kLong).fill_(asks ? 1 : 0);
  state_->communicator->all_reduce_exact("any rank", count);
  return count.item<std::int64_t>() > 0;
}
void Engine::tell_failure(const std::string& why) noexcept { state_->communicator->tell_failure(why); }

std::string Engine::State::step_name() const { return "step " + std::to_string(progress.global_steps); }

void Engine::State::agree_on_step(bool norm) {
  read_losses();
  // Once all ranks have come here, all have sealed what they had begun.
  const bool lost = !keep.snapshots().finish();
  const bool due = communicator->rank() == 0 && keep.snapshots().is_due(progress.global_steps + 1);
  const RankReport own{under_way.loss_sum, under_way.loss_finite, under_way.bad_micro_step, stop_asked, due, lost};
  std::vector<RankReport> reports = {own};
  if (store.sharding()) {
    const StepAgreement agreement = store.sharding()->exchange(step_name(), own.pack(), norm);
    reports.clear();
    for (const std::vector<double>& numbers : agreement.numbers) reports.push_back(RankReport::unpack(numbers));
    under_way.squares = agreement.squares;
    store.set_present(agreement.present);
  }
  under_way.loss_sum = 0;
  under_way.bad_losses.clear();
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const RankReport& report = reports[rank];
    under_way.loss_sum += report.loss_sum;
    if (!report.loss_finite) under_way.bad_losses.push_back({static_cast<int>(rank), report.bad_micro_step});
    stop_agreed = stop_agreed || report.stop_asked;
  }
  const auto any = [&](bool RankReport::*flag) {
    return std::any_of(reports.begin(), reports.end(), [&](const RankReport& report) { return report.*flag; });
  };
  keep.snapshots().agree(any(&RankReport::snapshot_due), !any(&RankReport::snapshot_lost));
  mean_loss =
      under_way.loss_sum / static_cast<double>((under_way.micro_step - under_way.dropped) * communicator->size());
}

bool Engine::State::wants_local_gradients() {
  return communicator->size() > 1 && communicates_by_itself(manifest()) &&
         optimizer->takes_local_gradients(progress.updates);
}

void Engine::State::synchronize() {
  if (!communicates_by_itself(manifest()) || !optimizer->synchronizes()) return;
  for (const SubGroup& sub_group : store.sub_groups()) store.acquire(sub_group);
  optimizer->synchronize(store.slots_without_gradients(), step_of_update(1.0));
  for (const SubGroup& sub_group : store.sub_groups()) store.release(sub_group, true);
  store.refresh_all();
}

void Engine::State::refuse_unused_parameters() {
  if (config.zero.ignore_unused_parameters) return;
  const std::vector<ParameterEntry>& entries = store.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (store.has_gradient(i) || entries[i].parameter.numel() == 0) continue;
    if (compressions.is_trained_state(entries[i].name)) continue;  // until the compression acts
    throw RuntimeFault("parameter '" + entries[i].name + "' got no gradient at " + step_name() +
                       ", and zero_optimization.ignore_unused_parameters is false. Freeze it "
                       "(requires_grad_(false)), or set the key to true.");
  }
}

std::vector<double> Engine::State::measure(const SubGroup& sub_group, const std::vector<const capstan_slot*>& slots,
                                           const capstan_step& step) {
  const auto width = static_cast<std::size_t>(optimizer->manifest().measures);
  if (width == 0) return {};
  const SlotBlocks blocks(slots, store.states());
  std::vector<double> totals =
      store.sum_measures(step_name() + ", measures", sub_group, optimizer->measure(blocks.slots(), step), width);
  for (std::size_t i = 0; i < totals.size(); ++i) {
    if (std::isfinite(totals[i])) continue;
    const std::string of = "parameter '" + std::string(as_view(slots[i / width]->name)) + "'";
    optimizer->refuse_total(totals[i], i % width, of, step.update_index);
  }
  return totals;
}

std::vector<double> Engine::State::measure_model(const capstan_step& step) {
  const auto width = static_cast<std::size_t>(optimizer->manifest().measures_model);
  if (width == 0) return {};
  std::vector<double> per_block;
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    const SlotBlocks blocks(store.slots(sub_group), store.states());
    const std::vector<double> partials = optimizer->measure_model(blocks.slots(), step);
    per_block.insert(per_block.end(), partials.begin(), partials.end());
    store.release(sub_group, false);
  }
  std::vector<double> totals = store.sum_model_measures(step_name() + ", measures of the model", per_block, width);
  for (std::size_t k = 0; k < width; ++k) {
    if (!std::isfinite(totals[k])) optimizer->refuse_total(totals[k], k, "the model", step.update_index);
  }
  return totals;
}

}  // namespace capstan
