#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "capstan/sdk/array.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/kernels.hpp"

namespace capstan::optimizers {

/// Where a plugin's manifest puts the two moments among its states.
struct MomentStates {
  std::size_t first, second;
};

/// Where an optimizer computes: access to what is there, and the loops over it. All that its plugins for several
/// devices do not share. What is not there throws, naming the parameter.
class Device {
 public:
  virtual ~Device() = default;

  virtual sdk::Place place() const = 0;
  virtual Kernels& kernels() = 0;

  /// float32.
  virtual float* param(const sdk::Slot& slot) const = 0;
  virtual float* floats(const sdk::Slot& slot, std::size_t state) const = 0;
  virtual float* model_state(const sdk::Step& step, std::size_t state) const = 0;
  virtual DeviceValues grad(const sdk::Slot& slot) const = 0;

  /// One update of Adam without bias correction, in which both moments follow the gradient: the warm-up. One of
  /// `numbers` a group.
  virtual void adaptive_update(const sdk::Slots& slots, MomentStates moments,
                               const std::vector<AdaptiveNumbers>& numbers) = 0;

  template <class T>
  sdk::Array<T> array(std::size_t size) const {
    return {place(), size};
  }
  /// At least `size` elements, of whatever values.
  template <class T>
  void grow(sdk::Array<T>& values, std::size_t size) const {
    if (values.size() < size) values = array<T>(size);
  }
};

/// An optimizer as the plugin for one kind of device has it.
template <class Optimizer, class DeviceKind>
class On : public Optimizer {
 public:
  On(const sdk::Host& host, const sdk::Params& params) : Optimizer(std::make_unique<DeviceKind>(host), host, params) {}
};

}  // namespace capstan::optimizers
