// The devices' half of elements.hpp. Compiled without contraction of multiply-adds.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <typeindex>
#include <vector>

#include "capstan/sdk/elements/device_slot.hpp"
#include "capstan/sdk/elements/device_sweep.cuh"
#include "capstan/sdk/optimizer.hpp"

#define CAPSTAN_RULES namespace capstan::elements {
#define CAPSTAN_RULES_END }
#define CAPSTAN_RULE __host__ __device__
#define CAPSTAN_RULE_KERNEL(Rule)
#define CAPSTAN_ONCE 1
#define CAPSTAN_RULE_EXPORT(Rule)
#define CAPSTAN_RULE_NUMBERS(Numbers)

namespace capstan::elements {

CAPSTAN_RULE inline float mul_add(float a, float b, float c) { return std::fma(a, b, c); }
CAPSTAN_RULE inline float neg_mul_add(float a, float b, float c) { return std::fma(-a, b, c); }
CAPSTAN_RULE inline float sqrt(float a) { return std::sqrt(a); }
CAPSTAN_RULE inline float abs(float a) { return std::fabs(a); }
CAPSTAN_RULE inline float max(float a, float b) { return std::fmax(a, b); }
CAPSTAN_RULE inline float min(float a, float b) { return std::fmin(a, b); }
CAPSTAN_RULE inline float copy_sign(float magnitude, float sign) { return std::copysign(magnitude, sign); }
CAPSTAN_RULE inline float select(bool mask, float where_true, float where_false) {
  return mask ? where_true : where_false;
}

/// Updates of slots by rules, on a device: a launch takes the slots of a rule together.
class ElementUpdates {
 public:
  ElementUpdates(const sdk::Host& host, std::size_t) : host_(host) {}

  /// Adds a slot, with its states by their numbers in the manifest, in the rule's order.
  template <class Rule>
  void add(const sdk::Slot& slot, std::initializer_list<std::size_t> states, const Rule& rule) {
    std::unique_ptr<List>& list = lists_[std::type_index(typeid(Rule))];
    if (!list) list = std::make_unique<ListOf<Rule>>();
    static_cast<ListOf<Rule>&>(*list).updates.push_back({block_of(sdk::DeviceSlot(slot), states), rule});
    slots_.push_back(slot);
  }
  /// Launches the updates of what was added. Once.
  void run() {
    for (const auto& [rule, list] : lists_) check_launch(list->launch(host_.stream()));
    for (const sdk::Slot& slot : slots_) {
      const sdk::DeviceSlot there(slot);
      if (there.compute().data) there.mark_compute_written();
    }
  }

 private:
  struct List {
    virtual ~List() = default;
    virtual const char* launch(void* stream) const = 0;
  };
  template <class Rule>
  struct ListOf final : List {
    std::vector<DeviceUpdate<Rule>> updates;
    const char* launch(void* stream) const override { return sweep<Rule::kStates, Rule>(updates, stream); }
  };

  sdk::Host host_;
  std::map<std::type_index, std::unique_ptr<List>> lists_;
  std::vector<sdk::Slot> slots_;
};

/// The optimizer T, whose update() adds each slot with a rule, as a component.
template <class T>
class OnElements {
 public:
  OnElements(const sdk::Host& host, const sdk::Params& params) : host_(host), optimizer_(host, params) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    ElementUpdates updates(host_, slots.size());
    optimizer_.update(slots, step, updates);
  }

 private:
  sdk::Host host_;
  T optimizer_;
};

}  // namespace capstan::elements
