#include "cli/tune/tune_replay.hpp"

#include <algorithm>
#include <cmath>

#include "cli/program.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/registry/registry.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"
#include "core/tuning/trial_folder.hpp"
#include "core/tuning/tuning_table.hpp"

namespace capstan::cli {
namespace {

constexpr double kShare = 0.2;  // of the points that a search may try
constexpr double kNear = 0.03;  // of the least cost, beside the table's own spread

PluginIndex plugins_of(const TuneArguments& arguments) {
  std::vector<std::pair<std::filesystem::path, std::string>> folders;
  for (const std::string& path : arguments.config.plugin_paths) folders.emplace_back(path, "--plugin-path");
  return PluginIndex::scan(folders);
}

/// The parameters of a component that were given none.
Json defaults(const ComponentManifest& component) {
  Json params = Json::object();
  for (const KeySpec& spec : component.params) {
    if (spec.fallback) params[spec.name] = *spec.fallback;
  }
  return params;
}

}  // namespace

int tune_replay(const TuneArguments& arguments) {
  const std::optional<Json> json = read_json(arguments.replay);
  if (!json) throw RuntimeFault(arguments.replay + ": is not there, or is no JSON. 'capstan tune --record' writes it.");
  const TuningTable table = TuningTable::parse(*json, arguments.replay);
  const PluginIndex plugins = plugins_of(arguments);
  Registry registry(plugins);
  const auto budget =
      std::max<std::size_t>(1, static_cast<std::size_t>(kShare * static_cast<double>(table.points.size())));
  const double near = kNear + table.spread();
  std::string text = arguments.replay + ": " + std::to_string(table.points.size()) +
                     " points, a run of one deviates by " + fixed(100 * table.spread(), 1) + " %";
  if (!table.about.empty()) text += "\n" + table.about;
  std::vector<std::vector<std::string>> rows = {
      {"tuner", "points tried", "searches within " + fixed(100 * near, 1) + " % of the best", "mean excess", "worst"}};
  for (const IndexedPlugin& plugin : plugins.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (component.kind != "tuner") continue;
      int good = 0;
      double sum = 0, worst = 0;
      std::size_t trials = 0;
      for (int seed = 0; seed < arguments.seeds; ++seed) {
        Tuner tuner(registry.create("tune", "tuner", component.type, defaults(component), model_host()));
        const Replay found = replay(table, tuner, budget, static_cast<std::uint64_t>(seed));
        good += found.excess <= near;
        sum += found.excess;
        worst = std::max(worst, found.excess);
        trials = std::max(trials, found.trials);
      }
      rows.push_back({component.type, std::to_string(trials),
                      std::to_string(good) + " of " + std::to_string(arguments.seeds),
                      fixed(100 * sum / arguments.seeds, 2) + " %", fixed(100 * worst, 2) + " %"});
    }
  }
  if (rows.size() == 1) throw PluginError("tune: no plugin of kind 'tuner' is installed." + plugins.searched_text());
  print(text + "\n" + table_text(rows));
  return 0;
}

}  // namespace capstan::cli
