#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::test {

inline std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// A world of `ranks` processes, and what each of them does.
struct InWorld {
  int ranks;
  std::function<void(Communicator&, const std::string& folder)> body;
};

/// Runs worlds one after the other, in one folder. The processes of each find their own body by their environment.
inline void in_worlds(const std::vector<InWorld>& worlds, int ranks_per_host = 0) {
  constexpr const char *kFolder = "CAPSTAN_TEST_SNAPSHOTS", *kWorld = "CAPSTAN_TEST_WORLD";
  std::optional<TemporaryFolder> made;
  std::string folder;
  if (const char* given = std::getenv(kFolder)) {
    folder = given;
  } else {
    folder = made.emplace().path().string();
  }
  for (std::size_t w = 0; w < worlds.size(); ++w) {
    const char* own = std::getenv(kWorld);
    if (own != nullptr && std::stoul(own) != w) continue;
    RanksOptions options;
    options.ranks_per_host = ranks_per_host;
    options.environment = [&](int) {
      return std::vector<std::string>{std::string(kFolder) + "=" + folder,
                                      std::string(kWorld) + "=" + std::to_string(w)};
    };
    expect_on_ranks(
        worlds[w].ranks, [&](Communicator& ranks) { worlds[w].body(ranks, folder); }, options);
  }
}

/// A run of which all ranks use the same parameters, as stage 3 needs.
struct TogetherRun : MixedRun {
  TogetherRun(const std::string& config, std::shared_ptr<Communicator> ranks, std::int64_t largest = 100'000)
      : MixedRun(config, std::move(ranks), 1, largest) {
    model.skips = false;
  }
};

}  // namespace capstan::test
