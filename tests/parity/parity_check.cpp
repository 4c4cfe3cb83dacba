// parity_check RUN.json --data corpus.txt [--steps N] [--set KEY=JSON ...]: repeats a recorded run, or its first N
// steps, with settings over those of the configuration, and prints one JSON line, the greatest differences. Started
// with torchrun, mpirun, srun or `capstan launch` as the recorded processes, it repeats the run in as many. Exit code 0
// within the tolerance, 1 past it, 2 when it could not run, or when Capstan departs from the peer there.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/parity_run.hpp"

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be read: " + std::strerror(errno));
  return {std::istreambuf_iterator<char>(in), {}};
}

using Settings = std::vector<std::pair<std::string, capstan::Json>>;

int run(const std::string& recorded_path, const std::string& corpus, std::int64_t at_most_steps,
        const Settings& settings) {
  using namespace capstan;
  const Json recorded = parity::parse_recorded(read_file(recorded_path));
  const parity::Tolerance tolerance = parity::tolerance_for(recorded);
  if (const std::string departure = parity::departure_of(recorded); !departure.empty()) {
    throw std::runtime_error(recorded_path + ": not comparable: " + departure);
  }
  const Rendezvous rendezvous = read_rendezvous(process_environment());
  const auto communicator = Communicator::connect(rendezvous, {});
  const parity::Difference difference = parity::repeat(recorded, corpus, settings, communicator, at_most_steps);
  Json line = parity::report(difference, tolerance);
  line["run"] = recorded_path;
  line["processes"] = communicator->size();
  if (communicator->rank() == 0) std::printf("%s\n", line.dump().c_str());
  return difference.within(tolerance) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t steps = std::numeric_limits<std::int64_t>::max();
  Settings settings;
  bool is_understood = argc >= 4 && argc % 2 == 0 && std::strcmp(argv[2], "--data") == 0;
  try {
    for (int i = 4; is_understood && i < argc; i += 2) {
      const std::string option = argv[i], value = argv[i + 1];
      const std::size_t equals = value.find('=');
      if (option == "--steps") {
        steps = std::atoll(value.c_str());
      } else if (option == "--set" && equals != std::string::npos) {
        settings.emplace_back(value.substr(0, equals), capstan::Json::parse(value.substr(equals + 1)));
      } else {
        is_understood = false;
      }
    }
    if (!is_understood || steps <= 0) {
      std::fprintf(stderr, "usage: parity_check RUN.json --data corpus.txt [--steps N] [--set KEY=JSON ...]\n");
      return 2;
    }
    return run(argv[1], argv[3], steps, settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_check: %s\n", error.what());
    return 2;
  }
}
