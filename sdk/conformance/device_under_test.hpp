#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/registry/manifest.hpp"
#include "sdk/conformance/case.hpp"

/// The device whose memory a case's tensors are in.
namespace capstan::conformance {

/// Type of the accelerator that stands in for a component's own device, on every machine.
inline constexpr std::string_view kEmulated = "emulated";

/// The component as it is checked on `device` (Options::device): of one for any device, made for the device itself.
/// Nothing where the component is for another one. `kEmulated` stands in for any device.
std::optional<ComponentManifest> on_device(ComponentManifest component, const std::string& device);

/// The plugin that brings the accelerator of a component's device, which is sought beside the installed plugins of the
/// emulated device, or as an engine does. Throws ConfigError where nothing brings it.
IndexedPlugin accelerator_for(const ComponentManifest& component, const std::string& device);

/// Loads the accelerator and chooses its first device, once in a process. Does nothing for components of the CPU, nor
/// where no device was asked for. Throws Broken where the machine has none.
void open_device(const Context& context, const ComponentManifest& component);

/// Where the tensors of a component are.
c10::Device device_of(const ComponentManifest& component);

/// Throws Broken with the first fault that the emulated device has found in this process.
void expect_no_fault();

}  // namespace capstan::conformance
