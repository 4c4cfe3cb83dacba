// The rest of elements.hpp for a device: what launches the kernels.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <typeindex>
#include <vector>

#include "capstan/sdk/array.hpp"
#include "capstan/sdk/elements/device_launch.hpp"
#include "capstan/sdk/elements/device_slot.hpp"
#include "capstan/sdk/elements/float_rules.hpp"
#include "capstan/sdk/elements/on_elements.hpp"

#define CAPSTAN_RULE_KERNEL(Rule) const char* launch_##Rule(const RuleLaunch<Rule>& launch);
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

/// The function that launches a rule. It returns null, or why a launch failed.
template <class Rule>
struct LaunchOf;

/// Slots by the rules that are applied to them: a launch takes the slots of a rule together.
class RuleLists {
 public:
  struct List {
    virtual ~List() = default;
    virtual std::size_t chunks() const = 0;
    /// `scratch` and `sums`: as in RuleLaunch. Throws what keeps the kernel from being launched.
    virtual void launch(void* stream, double* scratch, double* sums) const = 0;
    std::vector<std::size_t> slots;  // their numbers
  };

  template <class Rule>
  void add(std::size_t number, const sdk::Slot& slot, std::initializer_list<std::size_t> states, const Rule& rule) {
    std::unique_ptr<List>& list = lists_[std::type_index(typeid(Rule))];
    if (!list) list = std::make_unique<ListOf<Rule>>();
    list->slots.push_back(number);
    static_cast<ListOf<Rule>&>(*list).updates.push_back({block_of(sdk::DeviceSlot(slot), states), rule});
  }
  const std::map<std::type_index, std::unique_ptr<List>>& lists() const { return lists_; }

 private:
  template <class Rule>
  struct ListOf final : List {
    std::vector<DeviceUpdate<Rule>> updates;
    std::size_t chunks() const override {
      std::size_t chunks = 0;
      for (const DeviceUpdate<Rule>& update : updates) chunks += chunks_of(update.block.count);
      return chunks;
    }
    void launch(void* stream, double* scratch, double* sums) const override {
      check_launch(LaunchOf<Rule>::kLaunch({updates, stream, scratch, sums}));
    }
  };

  std::map<std::type_index, std::unique_ptr<List>> lists_;
};

/// Updates of slots by rules, on a device.
class ElementUpdates {
 public:
  ElementUpdates(const sdk::Host& host, std::size_t) : host_(host) {}

  /// Adds a slot, with its states by their numbers in the manifest, in the rule's order.
  template <class Rule>
  void add(const sdk::Slot& slot, std::initializer_list<std::size_t> states, const Rule& rule) {
    rules_.add(slots_.size(), slot, states, rule);
    slots_.push_back(slot);
  }
  /// Launches the updates of what was added. Once.
  void run() {
    for (const auto& [rule, list] : rules_.lists()) list->launch(host_.stream(), nullptr, nullptr);
    mark_written(slots_);
  }

 private:
  sdk::Host host_;
  RuleLists rules_;
  std::vector<sdk::Slot> slots_;
};

/// Sums over the elements of slots by measuring rules, on a device.
class ElementMeasures {
 public:
  ElementMeasures(const sdk::Host& host, const sdk::Slots& slots, std::span<double> partials)
      : host_(host), slots_(slots), partials_(partials) {
    std::fill(partials_.begin(), partials_.end(), 0.0);
  }

  /// Measures slot `index` of the call, with its states by their numbers in the manifest, in the rule's order. The sums
  /// of a slot that nobody adds are 0.
  template <class Rule>
  void add(std::size_t index, std::initializer_list<std::size_t> states, const Rule& rule) {
    rules_.add(index, slots_[index], states, rule);
  }
  /// Measures what was added, and waits for the sums. Once.
  void run() {
    for (const auto& [rule, list] : rules_.lists()) {
      const std::size_t measures = partials_.size() / slots_.size();
      const sdk::Array<double> scratch(slots_[list->slots.front()].raw()->param, list->chunks() * measures);
      std::vector<double> sums(list->slots.size() * measures);
      list->launch(host_.stream(), scratch.data(), sums.data());
      for (std::size_t i = 0; i < list->slots.size(); ++i) {
        std::copy_n(&sums[i * measures], measures, &partials_[list->slots[i] * measures]);
      }
    }
  }

 private:
  sdk::Host host_;
  sdk::Slots slots_;
  std::span<double> partials_;
  RuleLists rules_;
};

}  // namespace capstan::elements
