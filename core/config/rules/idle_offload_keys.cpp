#include <algorithm>
#include <cstdio>
#include <string>

#include "core/config/language/language.hpp"
#include "core/config/resolve/acting_component.hpp"
#include "core/config/rules/section_rules.hpp"

namespace capstan {
namespace {

constexpr const char* kUntaken = "is checked, but nothing in this installation acts on it.";

/// True when there is a word on the key already: an error, or what the machine lacks for it.
bool stands(const std::string& path, const Problems& problems) {
  return std::any_of(problems.all().begin(), problems.all().end(),
                     [&](const Problem& problem) { return problem.path == path; });
}

/// The keys of a section that is in use, of which some do nothing.
void keys_in_use(const char* section, const Effective& values, const PluginIndex& plugins, Problems& problems) {
  for (const auto& key : find_key(section)->members) {
    if (!differs(*key, values) || stands(key->path, problems)) continue;
    if (key->has(kNoEffect)) {
      problems.notice(key->path, std::string("has no effect here: ") + key->key->reader + ".");
    } else if (acting_component(*key, key->path, plugins).empty()) {
      problems.notice(key->path, kUntaken);
    }
  }
}

/// The keys of a section whose device is host memory, beside a run on another device.
void keys_beside_device(const char* section, const Effective& values, Problems& problems) {
  const std::string device = std::string(section) + ".device";
  for (const auto& key : find_key(section)->members) {
    if (key->path == device || !differs(*key, values) || stands(key->path, problems)) continue;
    problems.notice(key->path,
                    "has no effect with device \"cpu\": all of it is in host memory, and copies go through pinned "
                    "memory of their own.");
  }
}

/// Where a store is named beside the section, the section says how much and when, not where.
void beside_a_store(const char* section, const ComponentChoice& store, const std::string& counts,
                    const Effective& values, Problems& problems) {
  if (!offloads(values, section)) return;
  problems.notice(section, store.where.substr(0, store.where.rfind('.')) + " names the store, '" + store.type +
                               "', so that device, nvme_path and pin_memory have no effect here; " + counts + " have.");
}

bool is_ours(const std::optional<ComponentChoice>& store) { return store && store->where.starts_with("capstan."); }

void optimizer_keys(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  if (is_ours(config.optimizer_offload)) {
    return beside_a_store(kOffloadOptimizer, *config.optimizer_offload,
                          "buffer_count, ratio, pipeline_read and pipeline_write", values, problems);
  }
  if (config.optimizer_offload) return keys_in_use(kOffloadOptimizer, values, plugins, problems);
  if (values.text(std::string(kOffloadOptimizer) + ".device") != "cpu" || stands(kOffloadOptimizer, problems)) return;
  if (config.device == "cpu") {
    problems.notice(kOffloadOptimizer,
                    "has no effect in this run, whose device is the CPU: the state is in host memory already.");
    return;
  }
  keys_beside_device(kOffloadOptimizer, values, problems);
}

/// Elements and their bytes: "1000000000 elements (4 GB)".
std::string elements_text(std::int64_t elements, const Config& config) {
  const double bytes = static_cast<double>(elements) * (config.precision.compute == Precision::kFp32 ? 4 : 2);
  char text[64];
  std::snprintf(text, sizeof text, bytes < 1e9 ? "%.3g MB" : "%.3g GB", bytes < 1e9 ? bytes / 1e6 : bytes / 1e9);
  return std::to_string(elements) + " elements (" + text + ")";
}

void parameter_keys(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  if (is_ours(config.parameter_offload)) {
    return beside_a_store(kOffloadParameters, *config.parameter_offload, "buffer_count, buffer_size and max_in_cpu",
                          values, problems);
  }
  if (config.parameter_offload && values.text(std::string(kOffloadParameters) + ".device") == "cpu") {
    return keys_beside_device(kOffloadParameters, values, problems);
  }
  if (config.parameter_offload) {
    const std::string in_memory = std::string(kOffloadParameters) + ".max_in_cpu";
    if (!values.given(in_memory)) {
      problems.notice(in_memory, "is not given, so up to " + elements_text(values.integer(in_memory), config) +
                                     " of a process's parameters stay in memory; 0 sends all of them to nvme.");
    }
    return keys_in_use(kOffloadParameters, values, plugins, problems);
  }
  if (values.integer("zero_optimization.stage", 3) < 3) return;  // report_idle_keys() lists it with the keys of stage 3
  if (values.text(std::string(kOffloadParameters) + ".device") != "cpu" || stands(kOffloadParameters, problems)) return;
  problems.notice(kOffloadParameters,
                  "has no effect in this run, whose device is the CPU: parameters are in host memory already.");
}

/// True when the section's device nvme is where something goes, or would go if a plugin were installed.
bool on_nvme(const char* section, const std::optional<ComponentChoice>& store, const Effective& values) {
  if (section == kOffloadParameters && values.integer("zero_optimization.stage", 3) < 3) return false;
  return values.text(std::string(section) + ".device") == "nvme" && !is_ours(store);
}

void aio_keys(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  const SchemaNode& section = *find_key("aio");
  if (std::none_of(section.members.begin(), section.members.end(),
                   [&](const auto& key) { return differs(*key, values); })) {
    return;
  }
  const bool owned = !acting_component(section, section.path, plugins).empty();
  if (!owned && !on_nvme(kOffloadOptimizer, config.optimizer_offload, values) &&
      !on_nvme(kOffloadParameters, config.parameter_offload, values)) {
    problems.notice("aio", "has no effect in this run: neither offload_optimizer nor offload_param is on nvme.");
    return;
  }
  if (!owned && !config.optimizer_offload && !config.parameter_offload) return;  // the plugin is missing, which is said
  keys_in_use("aio", values, plugins, problems);
  const auto slower = [&](const std::string& key, bool when, const char* what) {
    const std::string path = "aio." + key;
    if (!values.given(path) || values.flag(path) != when) return;
    problems.notice(path, std::string(what) + ": that changes no result and is slower.");
  };
  slower("single_submit", true, "each request is submitted by itself");
  slower("overlap_events", false, "requests are waited for in batches");
  if (values.integer("aio.intra_op_parallelism", 1) > 1) {
    problems.notice("aio.intra_op_parallelism",
                    "counts where threads read and write; io_uring and libaio keep a disk busy from one thread.");
  }
}

}  // namespace

bool differs(const SchemaNode& key, const Effective& values) {
  const Json* value = values.find(key.path);
  return values.given(key.path) && value && !value->is_null() && !(key.spec.fallback && *value == *key.spec.fallback);
}

void report_idle_offload_keys(const Effective& values, const Config& config, const PluginIndex& plugins,
                              Problems& problems) {
  optimizer_keys(values, config, plugins, problems);
  parameter_keys(values, config, plugins, problems);
  aio_keys(values, config, plugins, problems);
  const std::string size = "zero_optimization.sub_group_size";
  if (values.given(size) && values.integer(size, 1) == 0) problems.notice(size, "0 makes a group of each parameter.");
}

}  // namespace capstan
