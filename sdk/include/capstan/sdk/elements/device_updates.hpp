// The rest of elements.hpp for a device: what launches the kernels.
#pragma once

#include <map>
#include <memory>
#include <typeindex>
#include <vector>

#include "capstan/sdk/elements/device_slot.hpp"
#include "capstan/sdk/elements/float_rules.hpp"
#include "capstan/sdk/elements/on_elements.hpp"

#define CAPSTAN_RULE_KERNEL(Rule) \
  const char* launch_##Rule(const std::vector<DeviceUpdate<Rule>>& updates, void* stream);
#define CAPSTAN_ONCE 1
#define CAPSTAN_RULE_NUMBERS(Numbers)
#define CAPSTAN_RULE_EXPORT(Rule)                   \
  namespace capstan::elements {                     \
  template <>                                       \
  struct LaunchOf<Rule> {                           \
    static constexpr auto kLaunch = &launch_##Rule; \
  };                                                \
  }

namespace capstan::elements {

/// The function that launches the updates by a rule. Null, or why a launch failed.
template <class Rule>
struct LaunchOf;

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
    mark_written(slots_);
  }

 private:
  struct List {
    virtual ~List() = default;
    virtual const char* launch(void* stream) const = 0;
  };
  template <class Rule>
  struct ListOf final : List {
    std::vector<DeviceUpdate<Rule>> updates;
    const char* launch(void* stream) const override { return LaunchOf<Rule>::kLaunch(updates, stream); }
  };

  sdk::Host host_;
  std::map<std::type_index, std::unique_ptr<List>> lists_;
  std::vector<sdk::Slot> slots_;
};

}  // namespace capstan::elements
