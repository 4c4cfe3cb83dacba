#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/arguments.hpp"
#include "core/config/config.hpp"
#include "core/tuning/space.hpp"

namespace capstan::cli {

/// What is to be tuned: a configuration with lists to search, and the command that trains with it.
struct TuneSetup {
  int processes = 1;
  Config config;  // the user's, with one value in the place of each list
  PluginIndex plugins;
  std::vector<TunedKey> lists;                             // of zero_optimization, but for the stage
  std::vector<int> stages;                                 // to try, in their order
  std::optional<std::vector<std::int64_t>> micro_batches;  // exactly these; none: found by trials
  std::int64_t first_micro_batch = 1;                      // the smallest to try
  std::int64_t accumulation = 1;
  std::optional<std::int64_t> train_batch;  // of the user's file; points have their own
  bool elastic = false;                     // elasticity chooses the batch
  std::vector<std::string> program;         // its words; empty: our own 'train'
  std::size_t config_word = 0;              // which of them is the configuration
  std::vector<std::string> train_options;   // of our own 'train', beside the configuration

  const AutotuningConfig& tuning() const { return config.autotuning; }
};

/// Reads what is to be tuned, as if the section autotuning were enabled. Throws ConfigError, with every problem of the
/// configuration.
TuneSetup tune_setup(const TuneArguments& arguments);

/// The configuration of a point, complete but for the section autotuning: the user's own with the point's values.
Json point_document(const TuneSetup& setup, const TuningPoint& point);
/// The same as a trial that measures and leaves nothing else behind: `folder` takes its metrics.
Json trial_document(const TuneSetup& setup, const TuningPoint& point, const std::filesystem::path& folder);
/// The same as a trial that only looks at the model, and writes that into `folder`.
Json profile_document(const TuneSetup& setup, std::int64_t micro_batch, const std::filesystem::path& folder);

/// The words that start training with a configuration file: a program's flags follow by autotuning.arg_mappings.
std::vector<std::string> command_words(const TuneSetup& setup, const std::string& config_file, const Json& document);
/// The words as a shell takes them.
std::string shell_text(const std::vector<std::string>& words);

}  // namespace capstan::cli
