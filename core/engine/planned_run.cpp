#include "core/engine/planned_run.hpp"

#include <map>

#include "capstan/sdk/share.hpp"
#include "core/engine/dtype_names.hpp"
#include "core/engine/parameter_groups.hpp"
#include "core/zero/flat_parameters.hpp"

namespace capstan {
namespace {

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

std::int64_t bytes_of(at::ScalarType dtype) { return static_cast<std::int64_t>(c10::elementSize(dtype)); }

std::int64_t communication_bytes(const Config& config) {
  const auto& told = config.communication.communication_data_type;
  if (!told) return bytes_of(compute_dtype(config.precision));
  return *told == "fp16" || *told == "bf16" ? 2 : 4;
}

class Planned {
 public:
  Planned(const Model& model, const Config& config, const PluginIndex& plugins)
      : model_(model),
        config_(config),
        groups_(model.parameters(), config.optimizer.value_or(ComponentChoice{}), config.parameter_groups) {
    if (config.optimizer) optimizer_ = plugins.find("optimizer", config.optimizer->type).component;
  }

  PlannedRun run(int local_world) {
    run_.zero = config_.zero;
    run_.world = config_.batch.world_size;
    run_.local_world = local_world;
    run_.micro_steps = std::max<std::int64_t>(config_.batch.gradient_accumulation_steps, 1);
    const PrecisionConfig& precision = config_.precision;
    run_.compute_bytes = bytes_of(compute_dtype(precision));
    run_.accumulation_bytes = bytes_of(dtype_named(precision.grad_accum_dtype));
    run_.communication_bytes = communication_bytes(config_);
    run_.norm = config_.gradient_clipping > 0 || precision.compute == Precision::kFp16 ||
                (precision.compute == Precision::kBf16 && precision.check_grad_overflow);
    add_buffers();
    add_parameters();
    if (optimizer_) add_optimizer();
    return std::move(run_);
  }

 private:
  void add_buffers() {
    for (const NamedTensor& buffer : model_.buffers()) {
      run_.buffer_bytes += static_cast<std::int64_t>(buffer.tensor.nbytes());
    }
    run_.built_bytes = run_.buffer_bytes;
  }

  void add_parameters() {
    std::map<const void*, int> users;  // of a storage
    for (const NamedTensor& parameter : model_.parameters()) ++users[storage_of(parameter.tensor)];
    for (const NamedTensor& named : model_.parameters()) {
      PlannedParameter parameter;
      parameter.numel = named.tensor.numel();
      parameter.shape = named.tensor.sizes().vec();
      parameter.trainable = named.tensor.requires_grad();
      parameter.movable = owns_its_storage(named.tensor) && users[storage_of(named.tensor)] == 1;
      run_.built_bytes += static_cast<std::int64_t>(named.tensor.nbytes());
      run_.parameters.push_back(std::move(parameter));
    }
  }

  /// The group of parameter i switches a state off, or not.
  bool is_on(const StateSpec& spec, std::size_t i) const {
    if (spec.when.empty()) return true;
    const std::vector<double>* numbers = groups_[groups_.group_of(i)].find(spec.when);
    return numbers != nullptr && numbers->front() != 0;
  }

  std::int64_t state_bytes(const StateSpec& spec) const {
    if (!spec.dtype_from.empty()) {
      const Json* full_precision = config_.optimizer->params.find(spec.dtype_from);
      if (full_precision && full_precision->is_bool() && !full_precision->as_bool()) return run_.compute_bytes;
    }
    return spec.dtype == "param" ? 4 : bytes_of(dtype_named(spec.dtype));
  }

  void add_optimizer() {
    const bool own = optimizer_->has_trait("own_communication");
    run_.can_be_partitioned = !(own && optimizer_->has_trait("needs_full_param"));
    run_.whole_parameters = !own && !optimizer_->has_trait("elementwise") && !optimizer_->has_trait("needs_param_norm");
    run_.measures = optimizer_->measures;
    for (const StateSpec& spec : optimizer_->state) {
      if (spec.extent == StateSpec::Extent::kModel) {
        run_.model_state_bytes += state_bytes(spec) * model_state_numel(spec);
        continue;
      }
      for (std::size_t i = 0; i < run_.parameters.size(); ++i) {
        PlannedParameter& parameter = run_.parameters[i];
        if (!parameter.trainable || !is_on(spec, i)) continue;
        (spec.like == StateSpec::Like::kScalar ? parameter.fixed_state_bytes : parameter.state_bytes) +=
            state_bytes(spec);
      }
    }
  }

  std::int64_t model_state_numel(const StateSpec& spec) const {
    if (spec.like == StateSpec::Like::kScalar) return 1;
    std::int64_t numel = 0;
    for (const PlannedParameter& parameter : run_.parameters) {
      if (!parameter.trainable) continue;
      numel += spec.like == StateSpec::Like::kShare ? sdk::share_of(parameter.numel, run_.world) : parameter.numel;
    }
    return numel;
  }

  const Model& model_;
  const Config& config_;
  ParameterGroups groups_;
  const ComponentManifest* optimizer_ = nullptr;
  PlannedRun run_;
};

}  // namespace

PlannedRun planned_run(const Model& model, const Config& config, const PluginIndex& plugins, int local_world) {
  return Planned(model, config, plugins).run(local_world);
}

}  // namespace capstan
