#pragma once

#include <c10/core/Device.h>

#include "plugins/optimizers/onebit/kernels.hpp"

namespace capstan::testing {

/// Kernels in the memory of `device`, held against the CPU's loops: arrays to the bit, sums to the order in which they
/// are made. Lengths around bytes, vectors and units; arrays that begin at no particular boundary; all types of
/// gradients.
void expect_steps_of_the_cpu(optimizers::Kernels& kernels, c10::Device device);
void expect_measures_of_the_cpu(optimizers::Kernels& kernels, c10::Device device);
void expect_memory_of_the_cpu(optimizers::Kernels& kernels, c10::Device device);
/// Each side of an exchange, with values that are not finite too.
void expect_compression_of_the_cpu(optimizers::Kernels& kernels, c10::Device device);

/// Without the instruction the CPU's kernels round twice where they say MulAdd, and there is nothing to compare with.
bool cpu_fuses();

}  // namespace capstan::testing
