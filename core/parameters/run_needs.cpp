#include "core/parameters/run_needs.hpp"

#include "capstan/sdk/share.hpp"
#include "core/errors.hpp"
#include "core/model/dtype_names.hpp"
#include "core/schema/regular_expression.hpp"

namespace capstan {

at::ScalarType communication_dtype(const Config& config) {
  const auto& told = config.communication.communication_data_type;
  if (!told) return compute_dtype(config.precision);
  return dtype_named(*told == "fp16" ? "float16" : *told == "bf16" ? "bfloat16" : "float32");
}

bool updates_on_host(const Config& config) {
  return config.device != "cpu" && config.optimizer && config.optimizer->device == "cpu";
}

bool parameters_in_host_memory(const Config& config) {
  return config.device != "cpu" && config.parameter_offload && config.zero.offload_param &&
         config.zero.offload_param->device == "cpu" && !config.parameter_offload->where.starts_with("capstan.");
}

bool tests_overflow(const PrecisionConfig& precision) {
  return precision.scales_loss || (precision.compute == Precision::kBf16 && precision.check_grad_overflow);
}

bool needs_norm(const Config& config) {
  return config.gradient_clipping > 0 || (config.zero.compute_grad_norm && tests_overflow(config.precision));
}

bool communicates_by_itself(const ComponentManifest* optimizer) {
  return optimizer != nullptr && optimizer->has_trait("own_communication");
}

bool needs_whole_parameters(const ComponentManifest* optimizer) {
  return optimizer != nullptr && !communicates_by_itself(optimizer) && !optimizer->has_trait("elementwise") &&
         !optimizer->has_trait("needs_param_norm");
}

bool takes_sparse_rows(const ComponentManifest* optimizer) {
  return optimizer != nullptr && optimizer->has_trait("sparse_rows");
}

bool can_be_partitioned(const ComponentManifest* optimizer) {
  return !communicates_by_itself(optimizer) || !optimizer->has_trait("needs_full_param");
}

namespace {

/// Whether an optimizer's manifest says of a state that it has an fp32 value for each element of each parameter.
bool is_moment(const StateSpec& spec) {
  return spec.like == StateSpec::Like::kParameter && spec.extent != StateSpec::Extent::kModel &&
         (spec.dtype == "param" || spec.dtype == "float32");
}

}  // namespace

bool widens_state(const StateSpec& spec, const Config& config) {
  const PrecisionConfig& precision = config.precision;
  if (!precision.low_precision_masters || !is_moment(spec) || state_dtype(spec, config) == at::kFloat) return false;
  return precision.stochastic_rounding || spec.dtype_from.empty();
}

at::ScalarType state_dtype(const StateSpec& spec, const Config& config) {
  if (config.precision.low_precision_states && is_moment(spec)) return compute_dtype(config.precision);
  if (!spec.dtype_from.empty()) {
    const Json* full_precision = config.optimizer->params.find(spec.dtype_from);
    if (full_precision && full_precision->is_bool() && !full_precision->as_bool()) {
      return compute_dtype(config.precision);
    }
  }
  return spec.dtype == "param" ? at::kFloat : dtype_named(spec.dtype);
}

std::vector<StateSpec> declared_states(const ComponentManifest& optimizer, const ComponentChoice& choice) {
  std::vector<StateSpec> states = optimizer.states_with(choice.params);
  for (const StateSpec& state : states) {
    for (const std::string& pattern : state.name_patterns) {
      const std::string fault = expression_fault(pattern);
      if (!fault.empty()) throw ConfigError("optimizer.params." + state.when_names + ": " + fault);
    }
  }
  return states;
}

bool has_state(const StateSpec& spec, const capstan_group& group, const std::string& name, at::IntArrayRef shape,
               capstan_param_role role) {
  if (!spec.is_for(name, {shape.data(), shape.size()}, role)) return false;
  if (spec.when.empty()) return true;
  const std::vector<double>* numbers = group.find(spec.when);
  return numbers != nullptr && numbers->front() != 0;
}

std::int64_t model_state_numel(const StateSpec& spec, const std::vector<std::int64_t>& numels, int ranks) {
  if (spec.like == StateSpec::Like::kScalar) return 1;
  std::int64_t numel = 0;
  for (const std::int64_t elements : numels) {
    numel += spec.like == StateSpec::Like::kShare ? sdk::share_of(elements, ranks) : elements;
  }
  return numel;
}

}  // namespace capstan
