#pragma once

#include <string>

namespace capstan {

/// How many processes a launcher says there are.
struct LauncherWorld {
  int size = 1;
  bool known = false;
  std::string origin;  // "WORLD_SIZE", or "WORLD_SIZE is not set; 4 GPUs are visible"
};

/// Reads the variables of torchrun, mpirun and srun. What they hold beside a positive number counts as not set.
LauncherWorld launcher_world();

/// NVIDIA's GPUs on this machine, by the device files of the driver: asking CUDA would load it.
int visible_gpus();

}  // namespace capstan
