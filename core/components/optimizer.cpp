#include "core/components/optimizer.hpp"

#include <c10/util/StringUtil.h>

#include <utility>

namespace capstan {

Optimizer::Optimizer(Component component)
    : component_(std::move(component)), where_("optimizer '" + component_.manifest().type + "'") {
  check_has(CAPSTAN_HAS(vtable(), measure), "measure", "measures", manifest().measures);
  check_has(CAPSTAN_HAS(vtable(), measure_model), "measure_model", "measures_model", manifest().measures_model);
}

void Optimizer::check_has(bool function, const std::string& name, const std::string& key, int count) const {
  if (function || count == 0) return;
  throw PluginError(where_ + " (" + file() + "): its manifest says " + key + " = " + std::to_string(count) +
                    ", and the plugin has no function " + name + ". Write it, or take the key out of plugin.toml.");
}

std::vector<double> Optimizer::measure(const Slots& slots, const capstan_step& step) const {
  std::vector<double> partials(static_cast<std::size_t>(manifest().measures) * slots.size());
  if (manifest().measures == 0) return partials;
  call_plugin(component_.function("measure"), where_, [&](capstan_error* error) {
    return vtable()->measure(component_.self(), slots.data(), slots.size(), &step, partials.data(), error);
  });
  return partials;
}

std::vector<double> Optimizer::measure_model(const Slots& slots, const capstan_step& step) const {
  std::vector<double> partials(static_cast<std::size_t>(manifest().measures_model) * slots.size());
  call_plugin(component_.function("measure_model"), where_ + ", measure_model", [&](capstan_error* error) {
    return vtable()->measure_model(component_.self(), slots.data(), slots.size(), &step, partials.data(), error);
  });
  return partials;
}

void Optimizer::refuse_total(double total, std::size_t index, const std::string& of, std::int64_t update_index) const {
  throw PluginError(where_ + " (" + file() + "): measure " + std::to_string(index) + " of " + of + " is " +
                    c10::str(total) + " at update " + std::to_string(update_index) +
                    ", though the gradients are finite; it must be finite. Lower the learning rate, or tell the "
                    "plugin's author. The update was not made.");
}

void Optimizer::update(const Slots& slots, const capstan_step& step, const std::vector<double>& totals,
                       int rank) const {
  const std::string where =
      where_ + " failed at update " + std::to_string(step.update_index) + " on rank " + std::to_string(rank);
  call_plugin(component_.function("update"), where, [&](capstan_error* error) {
    return vtable()->update(component_.self(), slots.data(), slots.size(), &step,
                            totals.empty() ? nullptr : totals.data(), error);
  });
}

bool Optimizer::takes_local_gradients(std::int64_t update_index) const {
  if (!CAPSTAN_HAS(vtable(), gradient_mode)) return false;
  int mode = 0;
  call_plugin(component_.function("gradient_mode"), where_ + ", gradient_mode", [&](capstan_error* error) {
    return vtable()->gradient_mode(component_.self(), update_index, &mode, error);
  });
  if (mode != 0 && mode != 1) {
    throw PluginError(where_ + " (" + file() + "): gradient_mode answers " + std::to_string(mode) + " for update " +
                      std::to_string(update_index) +
                      "; it must be 0 (the mean over ranks) or 1 (each rank's own). Tell the plugin's author.");
  }
  return mode == 1;
}

bool Optimizer::synchronizes() const {
  return CAPSTAN_HAS(vtable(), synchronize_step) || CAPSTAN_HAS(vtable(), synchronize);
}

void Optimizer::synchronize(const Slots& slots, const capstan_step& step) const {
  call_plugin(component_.function("synchronize"), where_ + ", synchronize", [&](capstan_error* error) {
    if (!CAPSTAN_HAS(vtable(), synchronize_step)) {
      return vtable()->synchronize(component_.self(), slots.data(), slots.size(), error);
    }
    return vtable()->synchronize_step(component_.self(), slots.data(), slots.size(), &step, error);
  });
}

std::string Optimizer::save() const {
  if (!CAPSTAN_HAS(vtable(), save)) return "";
  return plugin_text(component_.function("save"), where_ + ", save", [&](capstan_sink* sink, capstan_error* error) {
    return vtable()->save(component_.self(), sink, error);
  });
}

void Optimizer::load(std::string_view state) {
  if (!CAPSTAN_HAS(vtable(), load) || state.empty()) return;
  call_plugin(component_.function("load"), where_ + ", load",
              [&](capstan_error* error) { return vtable()->load(component_.self(), as_str(state), error); });
}

}  // namespace capstan
