#pragma once

#include <initializer_list>

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

}  // namespace capstan::elements
