#include "core/tuning/tuner.hpp"

#include "core/errors.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {

void Tuner::start(const TuningFeatures& space, std::size_t budget, std::uint64_t seed) {
  names_ = space.points;
  std::vector<capstan_str> points, features;
  for (const std::string& name : space.points) points.push_back(as_str(name));
  for (const std::string& name : space.features) features.push_back(as_str(name));
  capstan_tuning_space raw{};
  raw.struct_size = sizeof raw;
  raw.point_count = points.size();
  raw.feature_count = features.size();
  raw.points = points.data();
  raw.features = features.data();
  raw.values = space.values.data();
  raw.budget = budget;
  raw.seed = seed;
  call_plugin(component_.function("start"), where() + ", start",
              [&](capstan_error* error) { return table()->start(component_.self(), &raw, error); });
}

std::vector<std::size_t> Tuner::ask(const std::vector<double>& predictions, std::size_t most) {
  std::vector<std::size_t> points(most);
  std::size_t count = 0;
  call_plugin(component_.function("ask"), where() + ", ask", [&](capstan_error* error) {
    return table()->ask(component_.self(), predictions.data(), most, points.data(), &count, error);
  });
  if (count > most) {
    throw PluginError(where() + ": chose " + std::to_string(count) + " points where " + std::to_string(most) +
                      " were asked for. Ask the plugin's author.");
  }
  points.resize(count);
  for (const std::size_t point : points) {
    if (point >= names_.size()) {
      throw PluginError(where() + ": chose point " + std::to_string(point) + ", and there are " +
                        std::to_string(names_.size()) + ", from 0 on. Ask the plugin's author.");
    }
    if (!asked_.insert(point).second) {
      throw PluginError(where() + ": chose '" + names_[point] + "' twice. Ask the plugin's author.");
    }
  }
  return points;
}

void Tuner::tell(std::size_t point, std::optional<double> cost) {
  capstan_tuning_result result{};
  result.struct_size = sizeof result;
  result.measured = cost ? 1 : 0;
  result.point = point;
  result.cost = cost.value_or(0);
  call_plugin(component_.function("tell"), where() + ", tell",
              [&](capstan_error* error) { return table()->tell(component_.self(), &result, error); });
}

bool Tuner::saves() const { return CAPSTAN_HAS(table(), save) && CAPSTAN_HAS(table(), load); }

std::string Tuner::save() const {
  return plugin_text(component_.function("save"), where() + ", save", [&](capstan_sink* sink, capstan_error* error) {
    return table()->save(component_.self(), sink, error);
  });
}

void Tuner::load(const std::string& saved, const std::vector<std::size_t>& asked) {
  call_plugin(component_.function("load"), where() + ", load",
              [&](capstan_error* error) { return table()->load(component_.self(), as_str(saved), error); });
  asked_ = {asked.begin(), asked.end()};
}

}  // namespace capstan
