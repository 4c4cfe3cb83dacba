#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>

#include "core/log.hpp"
#include "core/run/elastic_guard.hpp"
#include "core/run/elastic_member.hpp"
#include "core/run/interrupt.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_parts.hpp"

namespace capstan {

/// A training that this process does with others, as a member of one generation of an elastic launch after the other.
class ElasticTraining {
 public:
  /// `interrupt`: null where signals are the program's business. All arguments must outlive this object.
  ElasticTraining(const RunSource& source, const RunParts& parts, ElasticMember& member, Interrupt* interrupt);

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

  const RunParts& parts_;
  ElasticMember& member_;
  Interrupt* interrupt_;
  ConfigContext context_;
  ConfigText text_;  // what the run began with, whatever becomes of the file
  log::Level level_ = log::level();
  std::filesystem::path save_dir_;
  ElasticGuard guard_;
};

}  // namespace capstan
