#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace capstan::testing {

/// tests/configs
std::filesystem::path configs_folder();

std::string read_text(const std::filesystem::path& file);

/// The components of every manifest in tests/configs/plugins, and the bundled attention: all that the language can
/// name.
const PluginIndex& all_components();

/// What a case expects of one problem: "error optimizer.type: no plugin provides ...". A text that ends in ".." is a
/// beginning.
struct Expectation {
  std::string what;  // "error", "warning", "notice", "value", "origin"
  std::string path;
  std::string text;
};

/// One file of tests/configs/cases:
///
///   # what it shows
///   world 4
///   lenient
///   override capstan.run.steps 20
///   toml
///   ---
///   {"train_batch_size": 32}
///   ---
///   value train_micro_batch_size_per_gpu: 8
///   error fp16.enable: unknown key. Did you mean 'enabled'?
///
/// Every error and warning must be expected; notices only where the case names some. Without "error" the configuration
/// must be accepted.
struct ConfigCase {
  ConfigText text;
  ConfigContext context;
  std::vector<Expectation> expected;

  static ConfigCase read(const std::filesystem::path& file);
};

/// What differs from the expectation, a line each; empty when nothing does.
std::string differences(const ConfigCase& config_case);

}  // namespace capstan::testing
