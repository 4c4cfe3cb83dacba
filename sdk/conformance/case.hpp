#pragma once

#include <filesystem>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/registry/plugin_index.hpp"

namespace capstan::conformance {

/// A rule that was broken; the text says how.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A case that cannot be tried on this plugin or here.
class Skip : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void expect(bool condition, const std::string& text) {
  if (!condition) throw Broken(text);
}

/// What a case works with. The working directory is an empty folder of its own.
struct Context {
  std::filesystem::path plugin;  // absolute
  std::uint64_t seed = 0;
  std::string device;  // Options::device
  std::mt19937_64 random() const { return std::mt19937_64(seed); }
};

struct Case {
  std::string name, rule;
  std::function<void(const Context&)> run;
};

using Cases = std::vector<Case>;

Cases loading_cases(const std::filesystem::path& plugin);
Cases creation_cases(const ComponentManifest& component);
Cases optimizer_cases(const ComponentManifest& component);
Cases device_wait_cases(const ComponentManifest& component);  // optimizers on the emulated device
Cases rank_cases(const ComponentManifest& component);         // optimizers that communicate by themselves
Cases scheduler_cases(const ComponentManifest& component);
Cases monitor_cases(const ComponentManifest& component);
Cases model_cases(const ComponentManifest& component);
Cases observer_cases(const ComponentManifest& component);
Cases offload_cases(const ComponentManifest& component);
// What moves whole buffers alone skips most of them.
Cases offload_range_cases(const ComponentManifest& component);
Cases offload_memory_cases(const ComponentManifest& component);
Cases offload_failure_cases(const ComponentManifest& component);
Cases compression_cases(const ComponentManifest& component);
Cases compression_operand_cases(const ComponentManifest& component);
Cases dataset_cases(const ComponentManifest& component);
Cases metric_cases(const ComponentManifest& component);
Cases sampler_cases(const ComponentManifest& component);
Cases pacing_cases(const ComponentManifest& component);
Cases tuner_cases(const ComponentManifest& component);
Cases attention_cases(const ComponentManifest& component);
Cases accelerator_cases(const ComponentManifest& component);

/// Whether there are cases for a kind.
bool has_suite(std::string_view kind);

}  // namespace capstan::conformance
