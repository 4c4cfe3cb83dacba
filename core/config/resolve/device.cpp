#include "core/config/resolve/device.hpp"

#include <cstdlib>
#include <string_view>

#include "core/config/resolve/launcher_world.hpp"

namespace capstan {
namespace {

constexpr const char* kDevice = "capstan.run.device";
constexpr const char* kCuda = "cuda";

/// CUDA_VISIBLE_DEVICES hides all of them when it is empty or begins with -1.
bool hides_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && (*visible == '\0' || std::string_view(visible).starts_with("-1"));
}

}  // namespace

std::string or_on_cpu(const std::string& device) {
  return device == "cpu" ? "" : " Or train on the CPU: --device cpu.";
}

std::string resolve_device(const Effective& values, const PluginIndex& plugins, Problems& problems) {
  const std::string asked = values.text(kDevice);
  if (asked == "auto") {
    const int gpus = plugins.find("accelerator", kCuda) && !hides_gpus() ? visible_gpus() : 0;
    if (gpus == 0) return "cpu";
    problems.notice(kDevice, "\"auto\" is \"cuda\": " + std::to_string(gpus) +
                                 (gpus == 1 ? " GPU is visible." : " GPUs are visible.") + or_on_cpu(kCuda));
    return kCuda;
  }
  if (asked == kCuda && !plugins.find("accelerator", kCuda)) {
    std::string text = plugins.missing_reason("accelerator", kCuda);
    text.insert(text.find("\n  looked in"), " It is built where a CUDA toolkit is found." + or_on_cpu(kCuda));
    problems.error(kDevice, text);
  }
  return asked == kCuda ? kCuda : "cpu";
}

void check_device(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  const std::string& device = config.device;
  if (device == "cpu") return;
  const auto refuse = [&](const std::string& path, const std::string& text) {
    problems.error(path, text + or_on_cpu(device));
  };
  if (config.zero.stage == 3) {
    refuse("zero_optimization.stage", "stage 3 is not carried out on " + device +
                                          " in this release, where parameters that come and go live in host memory. "
                                          "Set it to 0, 1 or 2.");
  }
  if (const std::string place = values.text("zero_optimization.offload_optimizer.device");
      config.zero.stage > 0 && (place == "cpu" || place == "nvme")) {
    refuse("zero_optimization.offload_optimizer.device",
           "'" + place + "' is not carried out on " + device +
               " in this release: optimizers update on the device. Remove the section.");
  } else if (config.optimizer_offload) {
    refuse("capstan.offload.optimizer",
           "is not carried out on " + device + " in this release: optimizers update on the device. Remove it.");
  }
  for (const ComponentChoice& compression : config.compressions) {
    refuse(compression.where, "compression '" + compression.type + "' works in host memory, and this run is on " +
                                  device + ". Switch it off.");
  }
  for (const ComponentChoice& observer : config.observers) {
    if (plugins.find("observer", observer.type, device)) continue;
    refuse(observer.where,
           "observer '" + observer.type + "' is made for the CPU, and this run is on " + device + ". Switch it off.");
  }
}

}  // namespace capstan
