#pragma once

#include <string>

namespace capstan {

/// How many processes a launcher says there are.
struct LauncherWorld {
  int size = 1;
  bool known = false;
  std::string origin;  // "WORLD_SIZE", or "WORLD_SIZE is not set; 4 GPUs are visible"
};

/// Reads the variables of torchrun, mpirun and srun, as processes do that join each other. Throws RuntimeFault for a
/// variable that holds something else than a number above 0.
LauncherWorld launcher_world();

/// NVIDIA's GPUs on this machine, by the device files of the driver: asking CUDA would load it.
int visible_gpus();

}  // namespace capstan
