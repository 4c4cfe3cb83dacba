#include "core/config/resolve/launcher_world.hpp"

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/errors.hpp"

namespace capstan {
namespace {

// Slurm sets SLURM_NTASKS for a batch script as well, which is one process; SLURM_STEP_NUM_TASKS is srun's.
constexpr const char* kVariables[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

std::optional<int> count(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  int value = 0;
  const std::string_view digits(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 1) {
    throw RuntimeFault(std::string(variable) + " is '" + text +
                       "', which is not a count. A launcher sets it; unset it to train in one process.");
  }
  return value;
}

}  // namespace

int visible_gpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    count += name.starts_with("nvidia") && name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6])) != 0;
  }
  return count;
}

LauncherWorld launcher_world() {
  for (const char* variable : kVariables) {
    if (const auto size = count(variable)) return {*size, true, variable};
  }
  LauncherWorld world;
  world.origin = "WORLD_SIZE is not set";
  if (const int gpus = visible_gpus(); gpus > 0) {
    world.origin += "; " + std::to_string(gpus) + (gpus == 1 ? " GPU is visible" : " GPUs are visible");
  }
  return world;
}

}  // namespace capstan
