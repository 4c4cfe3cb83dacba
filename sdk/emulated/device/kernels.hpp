#pragma once

namespace capstan::emulated {

/// Raw kernels, which get addresses where an operator gets tensors. A kernel's first access of a block faults, and the
/// handler of faults calls let_kernel_touch(): so the device learns what the kernel reads and writes, and checks the
/// order as an operator's. One kernel runs at a time, since pages are opened for all threads.
void begin_kernel(const char* name);
void end_kernel();

/// Called where `pointer` was touched that no thread may touch. True: a kernel of the calling thread has done it,
/// within a block, and may do it from now on.
bool let_kernel_touch(const void* pointer);
/// The kernel that the calling thread runs; null: none.
const char* running_kernel();

}  // namespace capstan::emulated
