#pragma once

#include <span>

#include "capstan/sdk/optimizer.hpp"

namespace capstan::elements {

class ElementUpdates;   // of the CPU, or of a device
class ElementMeasures;  // likewise

/// The optimizer T as a component: its update() adds each slot with a rule, its measure() and measure_model(), where it
/// has them, with a rule that measures. Whatever else T has, the component has.
template <class T>
class OnElements : public T {
 public:
  OnElements(const sdk::Host& host, const sdk::Params& params) : T(host, params), host_(host) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) { update_by<ElementUpdates>(slots, step); }
  void measure(const sdk::Slots& slots, const sdk::Step& step,
               std::span<double> partials) requires(sdk::detail::measures<T>() > 0) {
    measure_by<ElementMeasures>(slots, step, partials);
  }
  void measure_model(const sdk::Slots& slots, const sdk::Step& step,
                     std::span<double> partials) requires(sdk::detail::measures_model<T>() > 0) {
    measure_model_by<ElementMeasures>(slots, step, partials);
  }

 private:
  // Templates, since the classes that they name are complete only where a plugin is compiled.
  template <class Updates>
  void update_by(const sdk::Slots& slots, const sdk::Step& step) {
    Updates updates(host_, slots.size());
    T::update(slots, step, updates);
  }
  template <class Measures>
  void measure_by(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials) {
    Measures measures(host_, slots, partials);
    T::measure(slots, step, measures);
  }
  template <class Measures>
  void measure_model_by(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials) {
    Measures measures(host_, slots, partials);
    T::measure_model(slots, step, measures);
  }

  sdk::Host host_;
};

}  // namespace capstan::elements
