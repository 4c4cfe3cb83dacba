#include <cmath>

#include "sdk/conformance/component_under_test.hpp"

namespace capstan::conformance {
namespace {

class AcceleratorUnderTest {
 public:
  AcceleratorUnderTest(const Context& context, const ComponentManifest& manifest)
      : component_(context, manifest), table_(component_.vtable<capstan_accelerator>()) {}

  const capstan_accelerator& table() const { return *table_; }
  void* self() const { return component_.self(); }

  /// How many devices there are; nothing where the plugin says why it cannot count them.
  std::uint32_t count() const {
    std::uint32_t devices = 0;
    const bool counted =
        may_refuse("count", [&](capstan_error* error) { return table_->count(component_.self(), &devices, error); });
    return counted ? devices : 0;
  }

  bool open(std::uint32_t index, capstan_sink& facts) const {
    return may_refuse("open",
                      [&](capstan_error* error) { return table_->open(component_.self(), index, &facts, error); });
  }

  /// Chooses the first device; the case is skipped on a machine without one.
  std::string open_first() const {
    if (count() == 0) throw Skip("this machine has no device of the kind.");
    capstan_sink facts;
    expect(open(0, facts), "the first device cannot be opened.");
    return facts.text;
  }

 private:
  ComponentUnderTest component_;
  const capstan_accelerator* table_;
};

void check_count(const Context& context, const ComponentManifest& component) {
  AcceleratorUnderTest(context, component).count();
}

void check_facts(const Context& context, const ComponentManifest& component) {
  const std::string text = AcceleratorUnderTest(context, component).open_first();
  const Json facts = Json::parse(text);
  const Json* name = facts.is_object() ? facts.find("name") : nullptr;
  const Json* bytes = facts.is_object() ? facts.find("memory_bytes") : nullptr;
  expect(name && name->is_string() && !name->as_string().empty(), "open tells no \"name\": " + text);
  expect(bytes && bytes->is_number() && bytes->as_number() > 0, "open tells no \"memory_bytes\": " + text);
}

void check_absent_device(const Context& context, const ComponentManifest& component) {
  const AcceleratorUnderTest accelerator(context, component);
  capstan_sink facts;
  expect(!accelerator.open(accelerator.count(), facts), "a device behind the last one can be opened.");
}

void check_memory(const Context& context, const ComponentManifest& component) {
  const AcceleratorUnderTest accelerator(context, component);
  accelerator.open_first();
  capstan_device_memory memory{};
  memory.struct_size = sizeof memory;
  must("memory", [&](capstan_error* error) { return accelerator.table().memory(accelerator.self(), &memory, error); });
  expect(memory.in_use <= memory.peak && memory.peak <= memory.total && memory.total > 0,
         "in use " + std::to_string(memory.in_use) + ", peak " + std::to_string(memory.peak) + ", total " +
             std::to_string(memory.total) + " bytes.");
}

void check_events(const Context& context, const ComponentManifest& component) {
  const AcceleratorUnderTest accelerator(context, component);
  accelerator.open_first();
  void* events[2] = {};
  for (void*& event : events) {
    must("record", [&](capstan_error* error) { return accelerator.table().record(accelerator.self(), &event, error); });
  }
  double milliseconds = NAN;
  must("elapsed", [&](capstan_error* error) {
    return accelerator.table().elapsed(accelerator.self(), events[0], events[1], &milliseconds, error);
  });
  for (void* event : events) accelerator.table().forget(accelerator.self(), event);
  expect(std::isfinite(milliseconds) && milliseconds >= 0,
         "between two events that follow each other there are " + std::to_string(milliseconds) + " ms.");
}

}  // namespace

Cases accelerator_cases(const ComponentManifest& component) {
  const std::string prefix = "accelerator/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "count", "It counts its devices, or says why it cannot.", bound(check_count)},
      {prefix + "facts", "Opening a device tells its name and its memory.", bound(check_facts)},
      {prefix + "absent_device", "Opening a device that is not there is an error with a text.",
       bound(check_absent_device)},
      {prefix + "memory", "Memory in use, its peak and the device's size are in that order.", bound(check_memory)},
      {prefix + "events", "Time between two events is not negative.", bound(check_events)},
  };
}

}  // namespace capstan::conformance
