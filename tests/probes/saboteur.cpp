// Ends the process in the way that CAPSTAN_SABOTAGE says: "segv in rate". Trains nothing.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "capstan/sdk/monitor.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "capstan/sdk/scheduler.hpp"

namespace {

namespace sdk = capstan::sdk;

constexpr std::int64_t kUpdate = 2;  // the index of the update in which the optimizer and the schedule do it

int* volatile nowhere = nullptr;
volatile int nothing = 0;

/// Calls itself until the stack is full.
int overflow(volatile int* above) {
  if (above == nullptr) return 0;
  volatile int here[1024] = {*above};
  return overflow(here) + here[0];
}

/// The pages of this file are lost at once, that of the next instruction among them.
void truncate_own_file() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&truncate_own_file), &self) == 0) std::_Exit(99);
  if (truncate(self.dli_fname, 0) != 0) std::_Exit(98);
}

void end_the_process(std::string_view how) {
  if (how == "segv") *nowhere = 1;
  if (how == "fpe") nothing = 7 / nothing;
  if (how == "abort") std::abort();
  if (how == "ill") __builtin_trap();
  if (how == "exit") std::exit(5);
  if (how == "overflow") nothing = overflow(&nothing);
  if (how == "truncate") truncate_own_file();
  if (how == "thread") std::thread([] { *nowhere = 1; }).join();
}

void sabotage(std::string_view function) {
  const char* chosen = std::getenv("CAPSTAN_SABOTAGE");
  const std::string_view plan = chosen == nullptr ? "" : chosen;
  const auto space = plan.find(" in ");
  if (space != plan.npos && plan.substr(space + 4) == function) end_the_process(plan.substr(0, space));
}

class SaboteurSGD {
 public:
  SaboteurSGD(const sdk::Host&, const sdk::Params&) {}
  ~SaboteurSGD() { sabotage("destroy"); }
  void update(const sdk::Slots&, const sdk::Step& step) {
    if (step.update_index() == kUpdate) sabotage("update");
  }
};

class SaboteurLR {
 public:
  SaboteurLR(const sdk::Host& host, const sdk::Params&) : rank_(std::to_string(host.rank())) { sabotage("create"); }
  double rate(std::int64_t update_index, std::uint32_t, double base_lr) const {
    if (update_index == kUpdate) sabotage("rate");
    if (update_index == kUpdate) sabotage("rate of rank " + rank_);
    return base_lr;
  }

 private:
  std::string rank_;
};

class SaboteurMonitor {
 public:
  SaboteurMonitor(const sdk::Host&, const sdk::Params&) {}
  void write(std::span<const sdk::Metric>) { sabotage("write"); }
};

__attribute__((constructor)) void on_load() { sabotage("load"); }

}  // namespace

CAPSTAN_PLUGIN(&sdk::optimizer<SaboteurSGD, "SaboteurSGD">, &sdk::scheduler<SaboteurLR, "SaboteurLR">,
               &sdk::monitor<SaboteurMonitor, "saboteur_monitor">)
