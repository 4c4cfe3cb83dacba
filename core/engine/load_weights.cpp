// How an engine takes parameter values from a file that is not a checkpoint of its own.

#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <map>
#include <set>

#include "core/checkpoint/hf_folder.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/comm/as_one.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

using Values = std::map<std::string, at::Tensor>;

Values read_values(const std::string& file, const Model& model) {
  std::error_code error;
  auto entries = std::filesystem::is_directory(file, error)
                     ? read_hf_folder(file, hf_format(model.describe(), model.description()))
                     : read_safetensors(file);
  Values values;
  for (SafetensorsEntry& entry : entries) values.emplace(std::move(entry.name), std::move(entry.values));
  return values;
}

/// Throws unless every parameter of the model is there in its shape.
void check_values(const std::string& file, const Values& values, const Model& model) {
  std::string missing, misshapen, unexpected;
  std::set<std::string> known;
  for (const NamedTensor& parameter : model.parameters()) {
    known.insert(parameter.name);
    const auto found = values.find(parameter.name);
    if (found == values.end()) {
      missing += " '" + parameter.name + "'";
    } else if (found->second.sizes() != parameter.tensor.sizes()) {
      misshapen += " '" + parameter.name + "' (" + c10::str(found->second.sizes()) + " in the file, " +
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

/// Masters, frozen parameters, and what is not of floating point or a buffer.
void take_values(const Values& values, const Model& model, ParameterStore& store) {
  std::set<std::string> taken;
  for (const ParameterEntry& entry : store.entries()) taken.insert(entry.name);
  store.visit_masters(/*changes=*/true, [&](std::size_t i, at::Tensor master, std::int64_t offset) {
    const ParameterEntry& entry = store.entries()[i];
    master.copy_(values.at(entry.name).reshape({-1}).narrow(0, entry.offset + offset, master.numel()));
  });
  for (std::size_t k = 0; k < store.frozen().size(); ++k) {
    const std::string& name = store.frozen()[k].name;
    const at::Tensor given = values.at(name).reshape({-1});
    store.set_frozen(
        k, [&](at::Tensor to, std::int64_t offset) { to.copy_(given.narrow(0, offset, to.numel()).view(to.sizes())); });
    taken.insert(name);
  }
  for (const auto* list : {&model.parameters(), &model.buffers()}) {
    for (const NamedTensor& named : *list) {
      if (taken.contains(named.name) || !values.contains(named.name)) continue;
      at::Tensor tensor = named.tensor.detach();
      tensor.copy_(values.at(named.name).view_as(tensor));
    }
  }
}

}  // namespace

void Engine::load_weights(const std::string& file) {
  at::NoGradGuard no_grad;
  State& state = *state_;
  Values values;
  as_one(*state.communicator, "load_weights, check", [&] {
    values = read_values(file, state.model);
    check_values(file, values, state.model);
  });
  state.half_loaded = true;
  as_one(*state.communicator, "load_weights, apply", [&] { take_values(values, state.model, state.store); });
  state.store.refresh_all(state.transform_weight());
  state.half_loaded = false;
}

}  // namespace capstan
