// The readers of a launch's folder, for libFuzzer and for world_replay_test.
//
// The first byte picks the file: w for world.json, b for the board. A reader returns or throws RuntimeFault; anything
// else is a bug, and so is a world that is accepted and is another one once it is written and read again.
// `scripts/fuzz 600 world` looks for inputs.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "core/elastic/world.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

struct Launch {
  test::TemporaryFolder place{WorldFolder::place_in_memory()};
  WorldFolder folder = WorldFolder::create("fuzz", place.path());
};

void put(const WorldFolder& folder, const char* file, std::string_view bytes) {
  std::ofstream(folder.path() / file, std::ios::binary) << bytes;
}

void read_world(const WorldFolder& folder, std::string_view text) {
  put(folder, "world.json", text);
  const World world = folder.read();
  demand(world.processes.size() == world.members.size() && world.hosts.size() == world.members.size(),
         "lists of a world have other lengths than its members");
  demand(World::of(Json::parse(world.json().dump())).json() == world.json(),
         "a world changes when it is written and read");
}

void read_board(const WorldFolder& folder, std::string_view bytes) {
  put(folder, "board", bytes);
  const WorldFolder other(folder.path());
  other.revision();
}

}  // namespace
}  // namespace capstan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const capstan::Launch launch;
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.front() == 'w') capstan::read_world(launch.folder, input.substr(1));
    if (input.front() == 'b') capstan::read_board(launch.folder, input.substr(1));
  } catch (const capstan::RuntimeFault&) {
  }
  return 0;
}
