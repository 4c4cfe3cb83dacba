#include "core/elastic/launcher/launched_process.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/process/child.hpp"

namespace capstan {

void set_variable(const char* name, std::int64_t value) { setenv(name, std::to_string(value).c_str(), 1); }

pid_t start_process(const std::vector<std::string>& words, const sigset_t& mask, int processes,
                    const std::function<void()>& prepare) {
  const auto prepare_all = [&] {
    unsetenv("CAPSTAN_RDZV_SECRET");  // that of launchers alone
    prepare();
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    setenv("OMP_NUM_THREADS", std::to_string(std::max(1, cores / processes)).c_str(), 0);
  };
  return start_child({.words = words, .mask = mask, .caller = "launch: ", .prepare = prepare_all});
}

}  // namespace capstan
