// What a checkpoint holds and a run does not keep, and the other way round: nothing of it is dropped in silence.

#include <algorithm>

#include "core/keep/keep.hpp"
#include "core/log.hpp"
#include "core/registry/component_states.hpp"

namespace capstan {
namespace {

std::vector<std::string> keys_of(const Json& states) {
  std::vector<std::string> keys;
  for (const auto& [key, state] : states.as_object()) keys.push_back(key);
  return keys;
}

}  // namespace

void Keep::warn_of_other_components(const SavedRun& saved, const std::string& where) const {
  if (parts_.communicator->rank() > 0) return;
  for (const std::string& text :
       unmatched_states("observer", keys_of(saved.observers), parts_.observers.state_keys())) {
    log::warning(where + ": " + text);
  }
  for (const std::string& text :
       unmatched_states("compression", keys_of(saved.compressions), parts_.compressions.state_keys())) {
    log::warning(where + ": " + text);
  }
  const std::string had = saved.scheduler ? saved.scheduler->type : "none";
  const std::string has = parts_.config.scheduler ? parts_.config.scheduler->type : "none";
  if (had == has || !parts_.optimizer || !saved.options.schedule) return;
  log::warning(where + ": was saved with scheduler " + had + ", this run has " + has +
               (parts_.config.scheduler ? ", which goes on at update " + std::to_string(saved.progress.updates) + "."
                                        : ": learning rates stay those of the configuration."));
}

void Keep::warn_of_other_buffers(const CheckpointLookup& lookup) const {
  if (parts_.communicator->rank() > 0) return;
  std::vector<std::string> left_out, unknown;
  for (const std::string& name : lookup.with_state(kBuffer)) {
    const auto buffer = std::find_if(parts_.model.buffers().begin(), parts_.model.buffers().end(),
                                     [&](const NamedTensor& one) { return one.name == name; });
    if (buffer == parts_.model.buffers().end()) {
      unknown.push_back(name);
    } else if (!buffer->persistent) {
      left_out.push_back(name);
    }
  }
  if (!left_out.empty()) {
    log::info(lookup.where() + ": holds buffer " + quoted_list(left_out) +
              ", which this model does not keep in checkpoints. The model's own values stay.");
  }
  if (!unknown.empty()) {
    log::warning(lookup.where() + ": holds buffer " + quoted_list(unknown) +
                 ", which this model does not have. The values are not used.");
  }
}

void Keep::warn_of_other_states(const CheckpointLookup& lookup, const SavedRun& saved) {
  if (!parts_.optimizer || !saved.options.optimizer_states || parts_.communicator->rank() > 0) return;
  std::set<std::string> unknown = lookup.state_names();
  for (const char* name : {kParam, kBuffer, kFileState}) unknown.erase(name);
  for (const StateSpec& spec : parts_.store.states()) unknown.erase(spec.name);
  for (const CompressionState& state : parts_.compressions.states_to_save()) unknown.erase(without_of(state.state));
  // An optimizer without steps of its own goes by the run's.
  if (!saved.writer.empty()) unknown.erase("step");
  // Of a device that this run does not use.
  std::erase_if(unknown, [](const std::string& name) { return name.ends_with("generator"); });
  if (unknown.empty()) return;
  log::warning(lookup.where() + ": holds state " + quoted_list({unknown.begin(), unknown.end()}) +
               ", which nothing in this run keeps. The values are not used.");
}

void Keep::warn_of_other_numbers(const CheckpointContents& contents, const std::string& where) const {
  const Json* groups = contents.state.find("groups");
  if (groups == nullptr || groups->size() != parts_.groups.size() || parts_.communicator->rank() > 0) return;
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    const Json* then = groups->as_array()[i].find("numbers_then");
    if (then == nullptr) continue;
    for (const auto& [name, values] : then->as_object()) {
      const std::vector<double>* now = parts_.groups[i].find(name);
      if (now == nullptr) continue;
      Json list = Json::array();
      for (const double value : *now) list.push_back(value);
      if (list == values) continue;
      log::warning(where + ": parameter group " + std::to_string(i) + " was trained with " + name + " " +
                   values.dump() + ", and goes on with " + list.dump() + " of the configuration.");
    }
  }
}

}  // namespace capstan
