#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/elastic_guard.hpp"
#include "cli/elastic_member.hpp"
#include "cli/interrupt.hpp"
#include "cli/run_setup.hpp"
#include "core/log.hpp"

namespace capstan::cli {

/// A training that this process does with others, as a member of one generation of an elastic launch after the other.
class ElasticTraining {
 public:
  ElasticTraining(const TrainArguments& arguments, ElasticMember& member, Interrupt& interrupt);

  /// Trains in one generation with the processes of `loaded`, or alone saves what the run has come to. Returns the exit
  /// code, or nothing where the run goes on in another generation.
  using Train = std::function<std::optional<int>(const LoadedConfig& loaded, bool only_to_save)>;
  /// Until the run ends, or this process leaves it. The exit code. Throws what this process fails at by itself.
  int run(const Train& train);
  /// Throws ConfigError, which names what differs, where this process has not all that the others have to train with
  /// them: program, LibTorch, configuration, plugins, model.
  void check_same(const LoadedConfig& loaded, const Model& model) const;

 private:
  std::optional<int> train_in_generation(const Train& train, bool only_to_save);
  RunStart start(bool alone);
  void prepare() const;
  void keep_older_out(const LoadedConfig& loaded, bool leads);
  bool is_kept_out() const;
  void speak_as(const Rendezvous& rendezvous) const;
  void rethrow_unless_over(std::chrono::milliseconds patience) const;

  const TrainArguments& arguments_;
  ElasticMember& member_;
  Interrupt& interrupt_;
  ConfigText text_;  // what the run began with, whatever becomes of the file
  log::Level level_ = log::level();
  std::filesystem::path save_dir_;
  ElasticGuard guard_;
};

}  // namespace capstan::cli
