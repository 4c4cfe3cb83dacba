// What plugins cost when a run starts: listing 50 of them from their manifests, and loading and creating all that a
// full configuration names. Each repeat is a process of its own, forked before anything is loaded; LibTorch is loaded
// already, as it is in an engine. The peer is dlopen alone, on the same files, in turn. The bounds they are held
// against: 5 ms of CPU each, the first for 50 plugins; exit code 1 beyond them.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "bench/bound.hpp"
#include "core/config/config.hpp"
#include "core/engine/initialize.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/registry/registry.hpp"

namespace {

using namespace capstan;
namespace fs = std::filesystem;

constexpr int kListed = 50;
constexpr double kAllowedMs = 5;

const char* const kFullConfiguration = R"({
  "train_batch_size": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100}},
  "csv_monitor": {"enabled": true, "output_path": "/tmp"},
  "capstan": {"model": {"type": "mlp"}}
})";

struct Cost {
  double wall, cpu;  // milliseconds
};

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

/// What `work` takes, in a forked process.
Cost in_child(const std::function<void()>& work) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  if (const pid_t child = fork(); child == 0) {
    const double cpu = cpu_ms();
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    const Cost value{took.count(), cpu_ms() - cpu};
    _exit(write(ends[1], &value, sizeof value) == sizeof value ? 0 : 1);
  }
  close(ends[1]);
  Cost value{};
  if (read(ends[0], &value, sizeof value) != sizeof value) {
    std::fprintf(stderr, "plugin_load: a repeat failed.\n");
    std::exit(1);
  }
  close(ends[0]);
  wait(nullptr);
  return value;
}

Cost median(const std::vector<Cost>& costs) {
  const auto of = [&](double Cost::*part) {
    std::vector<double> values;
    for (const Cost& cost : costs) values.push_back(cost.*part);
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  };
  return {of(&Cost::wall), of(&Cost::cpu)};
}

/// A folder with kListed plugins: the installed ones, as often as it takes, under other names. A scan finds these
/// and the installed ones.
fs::path crowded_folder() {
  std::string pattern = (fs::temp_directory_path() / "plugin_load.XXXXXX").string();
  const fs::path folder = mkdtemp(pattern.data());
  int copies = 0;
  while (copies < kListed) {
    for (const auto& entry : fs::recursive_directory_iterator(installed_plugin_folder())) {
      if (entry.path().extension() != ".so" || copies == kListed) continue;
      fs::copy_file(entry.path(), folder / ("libcapstan_copy_" + std::to_string(copies++) + ".so"));
    }
    if (copies == 0) {
      std::fprintf(stderr, "plugin_load: there are no plugins in %s; build them first.\n",
                   installed_plugin_folder().c_str());
      std::exit(1);
    }
  }
  return folder;
}

struct Choice {
  const char* kind;
  std::string type;
  Json params;
};

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 21;

  const fs::path folder = crowded_folder();
  std::size_t listed = 0;
  std::vector<Cost> listing;
  for (int i = 0; i < repeats; ++i) {
    listing.push_back(in_child([&] { PluginIndex::scan({{folder, "bench"}}); }));
  }
  listed = PluginIndex::scan({{folder, "bench"}}).plugins().size();
  fs::remove_all(folder);

  PluginIndex plugins;
  const Config config = load_config({kFullConfiguration, "bench", false}, {}, plugins);
  const std::vector<Choice> choices = {{"optimizer", config.optimizer->type, config.optimizer->params},
                                       {"scheduler", config.scheduler->type, config.scheduler->params},
                                       {"monitor", config.monitors.at(0).type, config.monitors.at(0).params},
                                       {"model", config.run.model->type, config.run.model->params}};
  std::vector<std::string> files;
  for (const Choice& choice : choices) files.push_back(plugins.find(choice.kind, choice.type).plugin->file);

  std::vector<Cost> creating, opening;
  for (int i = 0; i < repeats; ++i) {
    creating.push_back(in_child([&] {
      Registry registry(plugins);
      for (const Choice& choice : choices) {
        registry.create(choice.kind, choice.kind, choice.type, choice.params, model_host());
      }
    }));
    opening.push_back(in_child([&] {
      for (const std::string& file : files) {
        if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::abort();
      }
    }));
  }
  const Cost list = median(listing), create = median(creating), open = median(opening);
  const double list_50 = kListed * list.cpu / static_cast<double>(listed);
  const bool lists = list_50 <= kAllowedMs, creates = create.cpu <= kAllowedMs;
  std::printf("listing %zu plugins                            %6.2f ms (cpu %5.2f), cpu %.2f for %d; allowed %g%s\n",
              listed, list.wall, list.cpu, list_50, kListed, kAllowedMs, bench::mark(lists));
  std::printf("loading and creating the %zu of a configuration %6.2f ms (cpu %5.2f), allowed cpu %g%s\n",
              choices.size(), create.wall, create.cpu, kAllowedMs, bench::mark(creates));
  std::printf("dlopen alone on the same files                %6.2f ms (cpu %5.2f)\n", open.wall, open.cpu);
  return bench::exit_code(lists && creates);
}
