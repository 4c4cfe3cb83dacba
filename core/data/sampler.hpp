#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// A component of kind "sampler". [engine]
class Sampler {
 public:
  struct Source {
    std::int64_t samples = 0;  // of the data set
    std::string fingerprint;   // of the data set
    std::int64_t batch = 0;    // samples of a step over all ranks
    std::uint64_t seed = 0;
    std::int64_t passes = 0;  // over the data, at most; 0: any number
  };
  /// What a checkpoint keeps.
  struct Saved {
    std::string type;
    std::int64_t steps = 0;           // that it has given samples for
    std::optional<std::string> text;  // the component's own
    std::vector<std::int64_t> ahead;  // samples of the step to come, where they were drawn already
  };

  explicit Sampler(Component component);

  bool started() const { return source_.has_value(); }
  /// Steps that it has given samples for.
  std::int64_t steps() const { return steps_; }
  /// Once, before of_step(). Throws RuntimeFault with the component's text: what is wrong with the data or its files.
  void start(const Source& source);
  /// The samples of a step of the run, of all ranks; asked again for the same step, the same. Throws RuntimeFault where
  /// the data is used up, and with the component's text.
  std::span<const std::int64_t> of_step(std::int64_t global_step);
  /// Changes a micro-batch of the step whose samples of_step() gave last. Throws PluginError with the component's text.
  void change(Batch& batch) const;

  /// As of before global step `next_step`.
  Saved save(std::int64_t next_step) const;
  /// Goes on as the saved one would have. Before start() it is kept until then. Throws RuntimeFault.
  void load(const Saved& saved, std::int64_t next_step);

 private:
  const capstan_sampler* table() const { return component_.vtable<capstan_sampler>(); }
  void take(const Saved& saved, std::int64_t next_step);

  Component component_;
  std::string where_;  // "sampler 'curriculum'"
  std::optional<Source> source_;
  std::optional<Saved> waiting_;   // loaded before start()
  std::int64_t waiting_step_ = 0;  // the step that comes after it
  std::int64_t steps_ = 0;         // for which it has given samples
  std::optional<std::int64_t> drawn_for_;
  std::vector<std::int64_t> drawn_;
};

}  // namespace capstan
