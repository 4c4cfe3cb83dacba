#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "sdk/conformance/beside_cases.hpp"
#include "sdk/conformance/case.hpp"
#include "sdk/conformance/conformance.hpp"
#include "sdk/conformance/device_under_test.hpp"

namespace capstan::conformance {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// What a kind demands beside what all plugins must keep to.
struct Suite {
  std::string_view kind;
  Cases (*cases)(const ComponentManifest& component);
  bool on_devices = false;  // its tensors may be in the memory of a device
};

constexpr Suite kSuites[] = {{"optimizer", optimizer_cases, true},
                             {"optimizer", rank_cases, true},
                             {"optimizer", device_wait_cases, true},
                             {"scheduler", scheduler_cases},
                             {"monitor", monitor_cases},
                             {"model", model_cases},
                             {"observer", observer_cases, true},
                             {"offload", offload_cases},
                             {"offload", offload_range_cases},
                             {"offload", offload_memory_cases},
                             {"offload", offload_failure_cases},
                             {"compression", compression_cases},
                             {"compression", compression_operand_cases},
                             {"dataset", dataset_cases},
                             {"metric", metric_cases},
                             {"sampler", sampler_cases},
                             {"pacing", pacing_cases},
                             {"attention", attention_cases, true},
                             {"tuner", tuner_cases},
                             {"accelerator", accelerator_cases}};

/// Without one of them nothing more can be said.
constexpr std::string_view kGates[] = {"loading/manifest", "loading/load"};

/// Gives the component's parameters the values of `params`, and takes from `unused` what it has.
void override_params(ComponentManifest& component, const Json& params, std::set<std::string>& unused) {
  for (KeySpec& spec : component.params) {
    const Json* value = params.find(spec.name);
    if (value == nullptr) continue;
    spec.fallback = *value;
    unused.erase(spec.name);
  }
}

void override_params(PluginManifest& manifest, const Json& params) {
  std::set<std::string> unused;
  for (const auto& [name, value] : params.as_object()) unused.insert(name);
  for (ComponentManifest& component : manifest.components) override_params(component, params, unused);
  if (unused.empty()) return;
  throw ConfigError("--params: no component of " + manifest.name + " has a parameter '" + *unused.begin() +
                    "'. 'capstan plugins inspect' shows what it has.");
}

/// The components that are tried, as they are tried.
std::vector<ComponentManifest> components_on(const PluginManifest& manifest, const std::string& device) {
  std::vector<ComponentManifest> chosen;
  for (const ComponentManifest& component : manifest.components) {
    if (auto made_for_it = on_device(component, device)) chosen.push_back(std::move(*made_for_it));
  }
  for (const ComponentManifest& component : chosen) {
    if (!component.runs_on("cpu") && !device.empty()) accelerator_for(component, device);  // throws where there is none
  }
  if (!chosen.empty()) return chosen;
  std::set<std::string> devices;
  for (const ComponentManifest& component : manifest.components) devices.insert(component.device);
  std::string list;
  for (const std::string& one : devices) list += (list.empty() ? "" : ", ") + one;
  throw ConfigError("--device " + device + ": no component of " + manifest.name +
                    " is made for it. They are made for " + list +
                    ". A manifest names the device: device = \"cuda\", or devices = \"any\" for what computes by "
                    "LibTorch's operators alone.");
}

/// The build for the CPU that a component on a device is compared with.
std::optional<CpuBuild> cpu_build_for(const ComponentManifest& component, const fs::path& plugin,
                                      const PluginManifest& manifest, const fs::path& beside) {
  if (component.kind != "optimizer" || component.runs_on("cpu")) return std::nullopt;
  if (!beside.empty()) return cpu_build(beside, component.type);
  for (const ComponentManifest& whole : manifest.components) {
    if (whole.type == component.type && whole.device == ComponentManifest::kAnyDevice) {
      return cpu_build(plugin, component.type);
    }
  }
  return std::nullopt;
}

Cases all_cases(const fs::path& plugin, const Options& options) {
  const std::string& device = options.device;
  Cases all = loading_cases(plugin);
  std::optional<IndexedPlugin> indexed;
  try {
    indexed = read_plugin(plugin);
  } catch (const PluginError&) {
    return all;  // loading/manifest says it
  }
  override_params(indexed->manifest, options.params);
  for (const ComponentManifest& component : components_on(indexed->manifest, device)) {
    const auto add = [&](Cases more) { std::move(more.begin(), more.end(), std::back_inserter(all)); };
    add(creation_cases(component));
    const bool on_cpu = component.runs_on("cpu");
    if (!on_cpu && device.empty()) continue;
    for (const Suite& suite : kSuites) {
      if (suite.kind == component.kind && (on_cpu || suite.on_devices)) add(suite.cases(component));
    }
    if (const auto cpu = cpu_build_for(component, plugin, indexed->manifest, options.beside)) {
      add(beside_cases(component, *cpu));
    }
  }
  return all;
}

/// An empty working directory, left and removed at the end.
class Workplace {
 public:
  Workplace() : before_(fs::current_path()) {
    std::string pattern = (fs::temp_directory_path() / "capstan-check-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw RuntimeFault(pattern + ": " + std::strerror(errno) + ".");
    folder_ = pattern;
    fs::current_path(folder_);
  }
  ~Workplace() {
    std::error_code ignored;
    fs::current_path(before_, ignored);
    fs::remove_all(folder_, ignored);
  }

 private:
  fs::path before_, folder_;
};

/// Runs a case here: its outcome as a letter, then its text.
std::string run_here(const Case& test, const Context& context) {
  try {
    test.run(context);
    expect_no_fault();
    return "P";
  } catch (const Skip& skip) {
    return std::string("S") + skip.what();
  } catch (const std::exception& error) {
    return std::string("F") + error.what();
  } catch (...) {
    return "Fan exception that is not a std::exception crossed the plugin's boundary.";
  }
}

void take(Result& result, const std::string& told) {
  result.outcome = told[0] == 'P' ? Outcome::kPassed : told[0] == 'S' ? Outcome::kSkipped : Outcome::kFailed;
  result.text = told.substr(1);
}

/// Reads what the child tells until it closes the pipe or the time is over; nothing then.
std::optional<std::string> listen(int pipe, Clock::time_point deadline) {
  std::string told;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return std::nullopt;
    pollfd ready{pipe, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, 1000))) <= 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(pipe, buffer, sizeof buffer);
    if (n <= 0) return told;
    told.append(buffer, static_cast<std::size_t>(n));
  }
}

void run_in_child(const Case& test, const Context& context, double timeout_s, Result& result) {
  int ends[2];
  if (::pipe(ends) != 0) throw RuntimeFault(std::string("pipe: ") + std::strerror(errno) + ".");
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw RuntimeFault(std::string("fork: ") + std::strerror(errno) + ".");
  if (child == 0) {
    ::close(ends[0]);
    ::setpgid(0, 0);                       // so that what it starts ends with it
    log::set_level(log::Level::kWarning);  // which file is loaded is no news here
    const std::string told = run_here(test, context);
    for (std::size_t done = 0; done < told.size();) {
      const ssize_t n = ::write(ends[1], told.data() + done, told.size() - done);
      if (n <= 0) break;
      done += static_cast<std::size_t>(n);
    }
    ::_exit(0);  // no destructors of the parent's objects
  }
  ::setpgid(child, child);
  ::close(ends[1]);
  const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  const auto told = listen(ends[0], Clock::now() + limit);
  ::close(ends[0]);
  ::kill(-child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!told) {
    result.outcome = Outcome::kFailed;
    result.text = "did not end within " + std::to_string(static_cast<int>(timeout_s)) + " s (--timeout).";
  } else if (!told->empty()) {
    take(result, *told);
  } else {
    result.outcome = Outcome::kFailed;
    result.text = WIFSIGNALED(status) ? "crashed: signal " + std::to_string(WTERMSIG(status)) + " (" +
                                            ::strsignal(WTERMSIG(status)) + ")."
                                      : "ended the process with exit code " + std::to_string(WEXITSTATUS(status)) + ".";
  }
}

void run_case(const Case& test, const Context& context, const Options& options, Result& result) {
  const auto start = Clock::now();
  const Workplace workplace;
  if (options.in_process) {
    take(result, run_here(test, context));
  } else {
    run_in_child(test, context, options.timeout_s, result);
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kNotTried:
      return "not tried";
  }
  return "";
}

}  // namespace

std::vector<CaseName> cases(const fs::path& plugin) {
  std::vector<CaseName> names;
  for (const Case& test : all_cases(plugin, Options{})) names.push_back({test.name, test.rule});
  return names;
}

bool has_suite(std::string_view kind) {
  return std::any_of(std::begin(kSuites), std::end(kSuites), [&](const Suite& suite) { return suite.kind == kind; });
}

std::vector<Result> check(const fs::path& plugin, const Options& options,
                          const std::function<void(const Result&)>& seen) {
  const Context context{fs::absolute(plugin), options.seed, options.device};
  std::vector<Result> results;
  std::string closed;  // the gate that failed
  for (const Case& test : all_cases(context.plugin, options)) {
    if (test.name.find(options.only) == std::string::npos) continue;
    Result result{.name = test.name, .rule = test.rule};
    if (closed.empty()) {
      run_case(test, context, options, result);
      const bool gate = std::find(std::begin(kGates), std::end(kGates), test.name) != std::end(kGates);
      if (gate && result.outcome == Outcome::kFailed) closed = test.name;
    } else {
      result.outcome = Outcome::kNotTried;
      result.text = closed + " failed.";
    }
    if (seen) seen(result);
    results.push_back(std::move(result));
  }
  return results;
}

bool passed(const std::vector<Result>& results) {
  bool some = false;
  for (const Result& result : results) {
    if (result.outcome == Outcome::kFailed) return false;
    some |= result.outcome == Outcome::kPassed;
  }
  return some;
}

Json report(const fs::path& plugin, const Options& options, const std::vector<Result>& results) {
  Json json = Json::object();
  json["plugin"] = fs::absolute(plugin).string();
  json["seed"] = std::to_string(options.seed);
  if (!options.device.empty()) json["device"] = options.device;
  json["passed"] = passed(results);
  json["cases"] = Json::array();
  for (const Result& result : results) {
    Json entry = Json::object();
    entry["name"] = result.name;
    entry["rule"] = result.rule;
    entry["outcome"] = outcome_name(result.outcome);
    if (!result.text.empty()) entry["text"] = result.text;
    entry["seconds"] = result.seconds;
    json["cases"].push_back(std::move(entry));
  }
  return json;
}

std::string line(const Result& result, const fs::path& plugin, const Options& options) {
  std::string text = std::string(outcome_name(result.outcome)) + "  " + result.name;
  if (!result.text.empty()) text += ": " + result.text;
  if (result.outcome == Outcome::kFailed) {
    text += "\n        the rule: " + result.rule + "\n        alone: capstan plugins check " + plugin.string() +
            " --in-process --only " + result.name + " --seed " + std::to_string(options.seed) +
            (options.device.empty() ? "" : " --device " + options.device) +
            (options.beside.empty() ? "" : " --beside " + options.beside.string());
  }
  return text;
}

}  // namespace capstan::conformance
