#pragma once

#include "capstan/sdk/optimizer.hpp"

namespace capstan::elements {

class ElementUpdates;  // of the CPU, or of a device

/// The optimizer T, whose update() adds each slot with a rule, as a component.
template <class T>
class OnElements {
 public:
  OnElements(const sdk::Host& host, const sdk::Params& params) : host_(host), optimizer_(host, params) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const { update<ElementUpdates>(slots, step); }

 private:
  template <class Updates>
  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    Updates updates(host_, slots.size());
    optimizer_.update(slots, step, updates);
  }

  sdk::Host host_;
  T optimizer_;
};

}  // namespace capstan::elements
