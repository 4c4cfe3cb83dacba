// Random schedules of an elastic run over several hosts: never two runs that both publish. Ends with 1 where a schedule
// has two, or where hosts do not come together again.
//   membership [SCHEDULES (1000000)] [FIRST_SEED (0)]

#include <cstdio>
#include <cstdlib>

#include "tests/core/elastic/launcher/membership_simulation.hpp"

int main(int argc, char** argv) {
  const long schedules = argc > 1 ? std::atol(argv[1]) : 1'000'000, first = argc > 2 ? std::atol(argv[2]) : 0;
  long faults = 0;
  long long decisions = 0, published = 0, fenced = 0;
  for (long seed = first; seed < first + schedules; ++seed) {
    capstan::MembershipSimulation simulation(static_cast<std::uint64_t>(seed));
    const std::string fault = simulation.run();
    decisions += simulation.decisions();
    published += simulation.published();
    fenced += simulation.fenced();
    if (fault.empty()) continue;
    ++faults;
    std::printf("seed %ld: %s\n", seed, fault.c_str());
  }
  std::printf(
      "%ld schedules, %ld with a fault: %lld decisions, %lld checkpoints published, %lld refused by the fence\n",
      schedules, faults, decisions, published, fenced);
  return faults == 0 ? 0 : 1;
}
