#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"
#include "core/registry/registry.hpp"

namespace capstan {

/// The optimizer component: only this class calls its functions. [engine]
class Optimizer {
 public:
  using Slots = std::vector<const capstan_slot*>;

  /// Throws PluginError when the plugin lacks a function that its manifest promises.
  explicit Optimizer(Component component);

  const ComponentManifest& manifest() const { return component_.manifest(); }
  /// "optimizer 'AdamW'", for messages.
  const std::string& where() const { return where_; }

  /// The partial sums that an update needs of its slots: as many numbers a slot as the manifest's `measures`, slot
  /// after slot; none when the optimizer measures nothing.
  std::vector<double> measure(const Slots& slots, const capstan_step& step) const;
  /// The same for the sums over the whole model: as many numbers a slot as the manifest's `measures_model`.
  std::vector<double> measure_model(const Slots& slots, const capstan_step& step) const;
  /// Throws PluginError for a sum of what the optimizer measured that is not finite; `of`: "parameter 'w'".
  [[noreturn]] void refuse_total(double total, std::size_t index, const std::string& of,
                                 std::int64_t update_index) const;
  /// Updates parameters and states of the slots. `totals`: what measure() gave, summed over ranks. Throws PluginError
  /// naming the update and the rank.
  void update(const Slots& slots, const capstan_step& step, const std::vector<double>& totals, int rank) const;

  /// Whether the update of that index takes this rank's own gradients rather than the mean over ranks.
  bool takes_local_gradients(std::int64_t update_index) const;
  /// Whether synchronize() does anything.
  bool synchronizes() const;
  /// Makes the parameters of all ranks equal; called by all of them.
  void synchronize(const Slots& slots, const capstan_step& step) const;

  /// "" when the optimizer keeps nothing but tensors.
  std::string save() const;
  void load(std::string_view state);

 private:
  const capstan_optimizer* vtable() const { return component_.vtable<capstan_optimizer>(); }
  /// Refuses a plugin without the function `name` that the manifest's `key` asks for.
  void check_has(bool function, const std::string& name, const std::string& key, int count) const;
  std::string file() const { return component_.plugin().file.string(); }

  Component component_;
  std::string where_;
};

}  // namespace capstan
