// How an engine takes parameter values from a file that is not a checkpoint of its own.

#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <set>

#include "core/checkpoint/hf_folder.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/comm/as_one.hpp"
#include "core/engine/given_weights.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

GivenWeights read_values(const std::string& file, const Model& model) {
  std::error_code error;
  auto entries = std::filesystem::is_directory(file, error)
                     ? read_hf_folder(file, hf_format(model.describe(), model.description()))
                     : read_safetensors(file);
  GivenWeights values;
  for (SafetensorsEntry& entry : entries) values.emplace(entry.name, std::move(entry));
  return values;
}

/// Throws unless every parameter of the model is there in its shape.
void check_values(const std::string& file, const GivenWeights& values, const Model& model) {
  std::string missing, misshapen, unexpected;
  std::set<std::string> known;
  for (const NamedTensor& parameter : model.parameters()) {
    known.insert(parameter.name);
    const auto found = values.find(parameter.name);
    if (found == values.end() && parameter.added) continue;
    if (found == values.end()) {
      missing += " '" + parameter.name + "'";
    } else if (found->second.values.sizes() != parameter.tensor.sizes()) {
      misshapen += " '" + parameter.name + "' (" + c10::str(found->second.values.sizes()) + " in the file, " +
                   c10::str(parameter.tensor.sizes()) + " in the model)";
    }
  }
  for (const NamedTensor& buffer : model.buffers()) known.insert(buffer.name);
  for (const auto& [name, value] : values) {
    if (!known.contains(name)) unexpected += " '" + name + "'";
  }
  if (!missing.empty() || !misshapen.empty()) {
    throw RuntimeFault(file + ": does not fit model '" + model.description() + "'." +
                       (missing.empty() ? "" : " Missing:" + missing + ".") +
                       (misshapen.empty() ? "" : " Of another shape:" + misshapen + ".") +
                       (unexpected.empty() ? "" : " In the file only:" + unexpected + "."));
  }
  if (!unexpected.empty()) log::warning(file + ": not in the model, so not used:" + unexpected + ".");
}

}  // namespace

void Engine::load_weights(const std::string& file) {
  at::NoGradGuard no_grad;
  State& state = *state_;
  GivenWeights values;
  as_one(*state.communicator, "load_weights, check", [&] {
    values = read_values(file, state.model);
    check_values(file, values, state.model);
  });
  state.snapshots.forget();
  state.half_loaded = true;
  as_one(*state.communicator, "load_weights, apply", [&] { take_weights(values, state.model, state.store); });
  state.store.set_initial(true);
  state.store.refresh_all(state.transform_weight());
  state.half_loaded = false;
  state.wants_teacher = false;
}

}  // namespace capstan
