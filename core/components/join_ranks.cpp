#include "core/components/join_ranks.hpp"

#include <ATen/core/grad_mode.h>

#include "core/comm/startup_check.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/memory/deferred_values.hpp"

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

}  // namespace

bool is_sharded(const Config& config, const Communicator& communicator) {
  return communicator.size() > 1 || (config.parameter_offload && config.zero.stage == 3);
}

bool holds_parts_only(const Config& config, const Communicator& communicator) {
  return is_sharded(config, communicator) && config.zero.stage == 3;
}

Model join_ranks(Model model, const Config& config, Communicator& communicator) {
  check_possible(config, communicator);
  if (model.deferred() && !holds_parts_only(config, communicator)) {
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

}  // namespace capstan
