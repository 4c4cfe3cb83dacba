#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace capstan {

/// Starts a process of a launch, with the signal mask `mask`; it is asked to end when this process does. `prepare` runs
/// in it before it becomes the program; `processes`: so many share the cores. Throws RuntimeFault.
pid_t start_process(const std::vector<std::string>& words, const sigset_t& mask, int processes,
                    const std::function<void()>& prepare);

void set_variable(const char* name, std::int64_t value);

}  // namespace capstan
