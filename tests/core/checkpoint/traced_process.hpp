#pragma once

#include <functional>
#include <string>
#include <vector>

namespace capstan::test {

/// How a traced process ended.
enum class TracedEnd { kFinished, kKilled, kFailed, kNotTraceable };

/// Runs `action` in a forked process and kills it with SIGKILL at the `stop`-th time that it enters or leaves a system
/// call, the first being 0; `before_kill` is called just before. kFinished: it ended before that.
TracedEnd kill_at_stop(int stop, const std::function<void()>& action, const std::function<void()>& before_kill);

/// Runs `action` in a forked process and lists, in order, the calls that decide what survives a power cut: "fsync PATH"
/// and "rename FROM TO". Empty when it cannot be traced.
std::vector<std::string> durability_calls(const std::function<void()>& action);

}  // namespace capstan::test
