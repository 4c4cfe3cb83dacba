#include "core/engine/planned_run.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/compression/compressions.hpp"
#include "core/compression/unmatched_groups.hpp"
#include "core/config/component_params.hpp"
#include "core/engine/initialize.hpp"
#include "core/model/dtype_names.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/registry/config_mistakes.hpp"
#include "core/zero/flat_parameters.hpp"

namespace capstan {
namespace {

std::int64_t bytes_of(at::ScalarType dtype) { return static_cast<std::int64_t>(c10::elementSize(dtype)); }

class Planned {
 public:
  Planned(const Model& model, const Config& config, const PluginIndex& plugins)
      : model_(model),
        config_(config),
        plugins_(plugins),
        compressions_(compressions()),
        groups_(model.parameters(), config.optimizer.value_or(ComponentChoice{}), config.parameter_groups) {
    if (config.optimizer)
      optimizer_ = plugins.find("optimizer", config.optimizer->type, config.optimizer->device).component;
  }

  PlannedRun run(int local_world) {
    run_.zero = config_.zero;
    run_.world = config_.batch.world_size;
    run_.on_device = config_.device != "cpu";
    run_.updates_on_host = run_.on_device && optimizer_ != nullptr && plugins_.find("accelerator", config_.device) &&
                           !plugins_.find("optimizer", config_.optimizer->type, config_.device);
    run_.optimizer_in_memory = in_memory(config_.optimizer_offload);
    run_.parameters_in_memory = in_memory(config_.parameter_offload);
    run_.local_world = local_world;
    run_.micro_steps = std::max<std::int64_t>(config_.batch.gradient_accumulation_steps, 1);
    const PrecisionConfig& precision = config_.precision;
    run_.compute_bytes = bytes_of(compute_dtype(precision));
    if (precision.low_precision_masters) {
      run_.master_bytes = run_.compute_bytes;
      run_.wide_bytes = bytes_of(at::kFloat);
    }
    run_.accumulation_bytes = bytes_of(dtype_named(precision.grad_accum_dtype));
    run_.communication_bytes = bytes_of(communication_dtype(config_));
    run_.norm = needs_norm(config_);
    add_buffers();
    add_parameters();
    add_trained_states();
    if (optimizer_) add_optimizer();
    if (!config_.compressions.empty()) add_compressions();
    return std::move(run_);
  }

 private:
  /// The store "cpu" is host memory.
  static bool in_memory(const std::optional<ComponentChoice>& store) { return store && store->type == "cpu"; }

  void add_buffers() {
    for (const NamedTensor& buffer : model_.buffers()) {
      run_.buffer_bytes += static_cast<std::int64_t>(buffer.tensor.nbytes());
    }
  }

  void add_parameters() {
    const std::vector<bool> alone = alone_in_storage(model_.parameters());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const NamedTensor& named = model_.parameters()[i];
      const at::Tensor& tensor = named.tensor;
      const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
      if (!at::isFloatingType(tensor.scalar_type())) {
        run_.buffer_bytes += bytes;
        continue;
      }
      PlannedParameter parameter;
      parameter.numel = tensor.numel();
      parameter.shape = tensor.sizes().vec();
      parameter.trainable = named.trained();
      parameter.movable = alone[i];
      parameter.built_bytes = bytes;
      names_.push_back(named.name);
      roles_.push_back(named.role);
      run_.parameters.push_back(std::move(parameter));
      group_of_.push_back(groups_.group_of(i));
    }
  }

  /// States that the optimizer trains: parameters behind those of the model.
  void add_trained_states() {
    for (const CompressionPlan::State* state : compressions_.trained()) {
      const std::string parent = compressions_.parent_of(state->parameter);
      const auto at = static_cast<std::size_t>(std::find(names_.begin(), names_.end(), parent) - names_.begin());
      PlannedParameter parameter;
      parameter.numel = state->numel;
      parameter.shape = state->shape;
      parameter.built_bytes = bytes_of(at::kFloat) * state->numel;
      parameter.given = true;
      if (state->of_elements) {
        const auto before = run_.parameters.begin() + static_cast<std::ptrdiff_t>(at);
        parameter.like = static_cast<std::size_t>(
            std::count_if(run_.parameters.begin(), before, [](const PlannedParameter& one) { return one.trainable; }));
      }
      names_.push_back(state->parameter);
      roles_.push_back(CAPSTAN_PARAM_OTHER);
      group_of_.push_back(group_of_[at]);
      run_.parameters.push_back(std::move(parameter));
    }
  }

  void add_optimizer() {
    run_.can_be_partitioned = can_be_partitioned(optimizer_);
    run_.whole_parameters = needs_whole_parameters(optimizer_);
    std::vector<std::int64_t> numels;
    for (const PlannedParameter& parameter : run_.parameters) {
      if (parameter.trainable) numels.push_back(parameter.numel);
    }
    run_.measures = optimizer_->measures + optimizer_->measures_model;
    for (const StateSpec& spec : declared_states(*optimizer_, *config_.optimizer)) {
      if (widens_state(spec, config_)) run_.wide_bytes += bytes_of(at::kFloat);
      if (spec.extent == StateSpec::Extent::kModel) {
        run_.model_state_bytes += bytes_of(state_dtype(spec, config_)) * model_state_numel(spec, numels, run_.world);
        continue;
      }
      for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
        PlannedParameter& parameter = run_.parameters[i];
        if (!parameter.trainable || !has_state(spec, groups_[group_of_[i]], names_[i], parameter.shape, roles_[i])) {
          continue;
        }
        add_state(parameter, spec);
      }
    }
  }

  void add_state(PlannedParameter& parameter, const StateSpec& spec) const {
    const std::int64_t bytes = bytes_of(state_dtype(spec, config_));
    if (spec.like == StateSpec::Like::kScalar) {
      parameter.fixed_state_bytes += bytes;
    } else if (spec.like == StateSpec::Like::kBlock) {
      parameter.block_states.push_back({spec.block, bytes});
    } else if (spec.is_factor()) {
      const std::int64_t values = spec.values_for(parameter.numel, parameter.shape);
      if (values > 0) parameter.block_states.push_back({parameter.numel / values, bytes});
    } else {
      parameter.state_bytes += bytes;
    }
  }

  Compressions compressions() const {
    Compressions made;
    if (config_.compressions.empty()) return made;
    Registry registry(plugins_, config_.plugin_sha256);
    for (const ComponentChoice& choice : config_.compressions) {
      const Json params = component_params(choice, config_, plugins_);
      made.add(registry.create(choice.where, choice.kind, choice.type, params, model_host()));
    }
    with_config_mistakes([&] { made.plan(module_table(model_, config_.run.seed)); });
    unmatched_groups(made, config_).mistakes.throw_if_any();
    return made;
  }

  /// Once all act: until its first update a compression costs memory as well, but weights travel as values.
  void add_compressions() {
    constexpr std::int64_t kAfterAllSchedules = std::numeric_limits<std::int64_t>::max();
    const Compressions& made = compressions_;
    const Partition partition = planned_partition(run_);
    std::size_t index = 0;
    for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
      PlannedParameter& parameter = run_.parameters[i];
      if (!parameter.trainable) continue;
      const Range part = partition.part(index++, 0);
      parameter.compressed = made.compresses(names_[i]);
      parameter.mask_bytes = made.bytes_an_element(names_[i]);
      run_.statistics_bytes += made.shared_bytes(names_[i], part);
      const CompressionPlan::Parameter* last = made.acting(names_[i], kAfterAllSchedules);
      if (run_.world == 1 || last == nullptr || last->bits == 0) continue;
      const CodeFormat format{last->layout.size(), last->bits, last->zero_points};
      if (format.fits(compute_dtype(config_.precision))) parameter.codes = format;
    }
  }

  const Model& model_;
  const Config& config_;
  const PluginIndex& plugins_;
  Compressions compressions_;
  ParameterGroups groups_;
  const ComponentManifest* optimizer_ = nullptr;
  PlannedRun run_;
  std::vector<std::uint32_t> group_of_;    // one for each of run_.parameters
  std::vector<std::string> names_;         // one for each of run_.parameters
  std::vector<capstan_param_role> roles_;  // one for each of run_.parameters
};

}  // namespace

PlannedRun planned_run(const Model& model, const Config& config, const PluginIndex& plugins, int local_world) {
  return Planned(model, config, plugins).run(local_world);
}

}  // namespace capstan
