// How several processes train the parameters of an engine.

#include <algorithm>

#include "core/components/engine_parts.hpp"
#include "core/log.hpp"
#include "core/model/dtype_names.hpp"
#include "core/model/parameter_classes.hpp"
#include "core/parameters/run_needs.hpp"

namespace capstan {
namespace {

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
  if (!accelerator->is_host()) options.after_this = [this] { return accelerator->after_this(); };
  options.whole_parameters = needs_whole_parameters(manifest());
  GradientReducer::Options& gradients = options.gradients;
  gradients.stage = can_be_partitioned(manifest()) ? config.zero.stage : 0;
  gradients.during_backward =
      config.zero.overlap_comm || config.zero.stage >= 2 || (config.zero.stage == 1 && config.zero.grad_hooks);
  gradients.accumulation = dtype_named(config.precision.grad_accum_dtype);
  const CommunicationConfig& communication = config.communication;
  gradients.sparse = communication.sparse_gradients;
  options.parts_on_host = !accelerator->is_host() && config.parameter_offload;
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

}  // namespace capstan
