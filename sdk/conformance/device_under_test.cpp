#include "sdk/conformance/device_under_test.hpp"

#include <map>
#include <memory>
#include <utility>

#include "capstan/sdk/on_cpu/emulated_device.hpp"
#include "core/errors.hpp"
#include "core/registry/registry.hpp"
#include "sdk/conformance/component_under_test.hpp"

namespace capstan::conformance {
namespace {

constexpr const char* kCpu = "cpu";

/// An accelerator whose device is open: it stays so up to the end of the process.
struct OpenDevice {
  capstan_host host = make_test_host();
  std::unique_ptr<Registry> registry;
  std::unique_ptr<Component> component;
};

std::unique_ptr<OpenDevice> opened(const IndexedPlugin& plugin, const std::string& type) {
  auto device = std::make_unique<OpenDevice>();
  device->registry = std::make_unique<Registry>(PluginIndex::of({plugin}));
  device->component = std::make_unique<Component>(
      device->registry->create("--device", "accelerator", type, Json::object(), &device->host));
  const auto* table = device->component->vtable<capstan_accelerator>();
  std::uint32_t devices = 0;
  call_plugin("count", [&](capstan_error* error) { return table->count(device->component->self(), &devices, error); });
  if (devices == 0) throw Broken("this machine has no device of type '" + type + "'.");
  capstan_sink facts;
  call_plugin("open", [&](capstan_error* error) { return table->open(device->component->self(), 0, &facts, error); });
  return device;
}

}  // namespace

std::optional<ComponentManifest> on_device(ComponentManifest component, const std::string& device) {
  if (device.empty() || device == kCpu) return component;
  if (component.device == ComponentManifest::kAnyDevice) component.device = device;
  if (component.device == kCpu || (device != kEmulated && component.device != device)) return std::nullopt;
  return component;
}

IndexedPlugin accelerator_for(const ComponentManifest& component, const std::string& device) {
  const bool emulated = device == kEmulated;
  const std::filesystem::path folder = emulated_device_folder();
  const PluginIndex index = emulated ? PluginIndex::scan_only(folder) : PluginIndex::scan();
  if (const ComponentRef found = index.find("accelerator", component.device)) return *found.plugin;
  if (!emulated) throw ConfigError(index.missing_text("--device", "accelerator", component.device));
  throw ConfigError("--device emulated: nothing in " + folder.string() + " stands in for the device '" +
                    component.device + "' of " + component.kind + " '" + component.type + "'." +
                    (index.plugins().empty() ? " Install Capstan with its emulated device, which a whole build has."
                                             : " The emulated device stands in for 'cuda' and 'emulated'."));
}

void open_device(const Context& context, const ComponentManifest& component) {
  if (context.device.empty() || component.runs_on(kCpu)) return;
  static std::map<std::string, std::unique_ptr<OpenDevice>> devices;  // cases run one at a time
  auto& device = devices[component.device];
  if (device) return;
  try {
    device = opened(accelerator_for(component, context.device), component.device);
  } catch (const PluginError& error) {
    throw Broken(std::string("the device cannot be opened: ") + error.what());
  }
}

c10::Device device_of(const ComponentManifest& component) {
  return component.runs_on(kCpu) ? c10::Device(kCpu) : c10::Device(component.device + ":0");
}

void expect_no_fault() {
  const auto& device = sdk::kernels_on_cpu::EmulatedDevice::get();
  const char* fault = device.fault ? device.fault() : nullptr;
  if (fault) throw Broken("the emulated device found a " + std::string(fault) + ".");
}

}  // namespace capstan::conformance
