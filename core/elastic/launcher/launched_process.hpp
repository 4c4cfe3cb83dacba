#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace capstan {

/// How a process ended, as a shell says it.
int code_of(int status);
/// "was killed by signal Killed", "ended with exit code 1".
std::string how_it_ended(int status);

/// Starts a process that is asked to end when this one does, with the signal mask `mask`. `prepare` runs in it, before
/// it becomes the program; `processes`: so many share the cores. Throws RuntimeFault.
pid_t start_process(const std::vector<std::string>& words, const sigset_t& mask, int processes,
                    const std::function<void()>& prepare);

void set_variable(const char* name, std::int64_t value);

}  // namespace capstan
