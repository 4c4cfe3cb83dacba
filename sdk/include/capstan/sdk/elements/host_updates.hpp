#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <vector>

#include "capstan/sdk/elements/elementwise.hpp"
#include "capstan/sdk/elements/on_elements.hpp"

namespace capstan::elements {

/// The kernel that applies a rule on the CPU.
template <class Rule>
struct KernelOf;

/// Updates of slots by rules, on the CPU.
class ElementUpdates {
 public:
  ElementUpdates(const sdk::Host&, std::size_t slots) : update_(slots) {}

  /// Adds a slot, with its states by their numbers in the manifest, in the rule's order. `rule` must live until run().
  template <class Rule>
  void add(const sdk::Slot& slot, std::initializer_list<std::size_t> states, const Rule& rule) {
    update_.add(slot, states, KernelOf<Rule>::kKernel, &rule);
  }
  /// Updates what was added. Once.
  void run() { update_.run(); }

 private:
  ElementwiseUpdate update_;
};

/// Sums over the elements of slots by measuring rules, on the CPU.
class ElementMeasures {
 public:
  ElementMeasures(const sdk::Host&, const sdk::Slots& slots, std::span<double> partials)
      : slots_(slots), partials_(partials), measure_(slots.size()) {
    std::fill(partials_.begin(), partials_.end(), 0.0);
  }

  /// Measures slot `index` of the call, with its states by their numbers in the manifest, in the rule's order. The sums
  /// of a slot that nobody adds are 0. `rule` must live until run().
  template <class Rule>
  void add(std::size_t index, std::initializer_list<std::size_t> states, const Rule& rule) {
    measure_.add(slots_[index], states, KernelOf<Rule>::kKernel, &rule);
    indices_.push_back(index);
  }
  /// Measures what was added. Once.
  void run() {
    if (indices_.empty()) return;
    const std::size_t measures = partials_.size() / slots_.size();
    std::vector<double> sums(indices_.size() * measures);
    measure_.measure(sums, measures);
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      std::copy_n(&sums[i * measures], measures, &partials_[indices_[i] * measures]);
    }
  }

 private:
  sdk::Slots slots_;
  std::span<double> partials_;
  ElementwiseUpdate measure_;
  std::vector<std::size_t> indices_;
};

}  // namespace capstan::elements
