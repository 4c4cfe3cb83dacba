#include "core/config/resolve/device.hpp"

#include <cstdlib>
#include <string_view>

#include "core/config/resolve/launcher_world.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

constexpr const char* kDevice = "capstan.run.device";
constexpr const char *kOnCpu = "cpu", *kCuda = "cuda";

/// CUDA_VISIBLE_DEVICES hides all of them when it is empty or begins with -1.
bool hides_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && (*visible == '\0' || std::string_view(visible).starts_with("-1"));
}

/// The sentence for a device that no plugin provides: it lists the devices that plugins provide.
std::string no_such_device(const std::string& asked, const PluginIndex& plugins) {
  std::string text = plugins.missing_reason("accelerator", asked), hint;
  if (asked == kCuda) {
    hint = " It is built where a CUDA toolkit is found.";
  } else if (text.find("Did you mean") == std::string::npos) {
    const auto near = asked == "gpu" ? std::optional<std::string>(kCuda) : nearest_name(asked, {kOnCpu, kCuda});
    if (near) hint = " Did you mean '" + *near + "'?";
  }
  text.insert(text.find("\n  looked in"), hint + or_on_cpu(asked));
  return text;
}

}  // namespace

std::string or_on_cpu(const std::string& device) {
  return device == "cpu" ? "" : " Or train on the CPU: --device cpu.";
}

std::string device_of_builds(const std::string& device, const PluginIndex& plugins) {
  return plugins.find("accelerator", device) ? device : "cpu";
}

std::string resolve_device(const Effective& values, const PluginIndex& plugins, bool check_only, Problems& problems) {
  std::string asked = values.text(kDevice);
  if (asked == "auto") {
    const int gpus = plugins.find("accelerator", kCuda) && !hides_gpus() ? visible_gpus() : 0;
    if (gpus == 0) return kOnCpu;
    problems.notice(kDevice, "\"auto\" is \"cuda\": " + std::to_string(gpus) +
                                 (gpus == 1 ? " GPU is visible." : " GPUs are visible.") + or_on_cpu(kCuda));
    return kCuda;
  }
  if (asked.empty() || asked == kOnCpu) return kOnCpu;  // of another type than a string: reported already
  if (plugins.find("accelerator", asked)) return asked;
  if (asked == kCuda && check_only) {
    problems.notice(kDevice, "the plugin for cuda is not installed here, so this is checked without it.");
    return kCuda;
  }
  problems.error(kDevice, no_such_device(asked, plugins));
  return asked == kCuda ? kCuda : kOnCpu;
}

void update_where_compressions_work(Config& config, const PluginIndex& plugins, Problems& problems) {
  if (config.device == kOnCpu || config.compressions.empty() || !config.optimizer) return;
  if (config.optimizer->device == kOnCpu || !plugins.find("optimizer", config.optimizer->type)) return;
  config.optimizer->device = kOnCpu;
  problems.notice("optimizer.type", "compressions read master values in host memory, so that optimizer '" +
                                        config.optimizer->type + "' updates there.");
}

void check_device(const Config& config, const PluginIndex& plugins, Problems& problems) {
  const std::string& device = config.device;
  if (device == "cpu") return;
  const auto refuse = [&](const std::string& path, const std::string& text) {
    problems.error(path, text + or_on_cpu(device));
  };
  for (const ComponentChoice& compression : config.compressions) {
    if (config.optimizer && config.optimizer->device == kOnCpu) continue;
    refuse(compression.where, "compression '" + compression.type +
                                  "' works in host memory, where no optimizer of this run " +
                                  "updates. Choose an optimizer that has a build for the CPU, or switch it off.");
  }
  for (const ComponentChoice& observer : config.observers) {
    if (plugins.find("observer", observer.type, device)) continue;
    refuse(observer.where,
           "observer '" + observer.type + "' is made for the CPU, and this run is on " + device + ". Switch it off.");
  }
}

}  // namespace capstan
