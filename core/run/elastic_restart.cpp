#include "core/run/elastic_restart.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/elastic/own_folder.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/elastic/world.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/run/elastic_made_of.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

/// What a run that nobody touches for so long has left is no use to anybody: torchrun starts processes anew at once, or
/// once a host has come.
constexpr double kLeft = 600;  // seconds
constexpr int kAttempts = 1000;
/// More ranks than that no start has.
constexpr std::int64_t kRanks = 1 << 20;

std::string prefix() { return "capstan-torchrun-" + std::to_string(geteuid()) + "-"; }

/// The same for all starts of a run, another one for other runs of this host.
std::string key_of(const char* run, const ConfigText& text) {
  std::ifstream file("/proc/self/cmdline");
  const std::string command(std::istreambuf_iterator<char>(file), {});
  const std::string all = std::string(run) + "\n" + running_program() + "\n" + command + "\n" +
                          fs::current_path().string() + "\n" + text.source + "\n" + text.text;
  return hex(xxh3(all.data(), all.size()));
}

/// Removes what runs have left that nobody goes on with. Returns a sentence for each folder that cannot be used.
std::vector<std::string> remove_left(const fs::path& place, const fs::path& own) {
  std::vector<std::string> refused;
  for (const fs::path& path : paths_in(place)) {
    if (!path.filename().string().starts_with(prefix()) || path == own) continue;
    try {
      const OwnFolder folder(path);
      LifeLock life(folder, /*create=*/false);
      if (life.seconds_since_touch() < kLeft || !life.take_all()) continue;
      std::error_code ignored;
      fs::remove_all(path, ignored);
    } catch (const RuntimeFault& fault) {
      if (fs::exists(fs::symlink_status(path))) refused.emplace_back(fault.what());
    }
  }
  return refused;
}

/// The lock that tells that the run of the folder is alive. Makes the folder.
std::unique_ptr<LifeLock> life_in(const fs::path& path) {
  try {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const OwnFolder folder = OwnFolder::make(path);
      auto life = std::make_unique<LifeLock>(folder, /*create=*/true);
      // Another run that removes the folder as an old one has it locked, and then has removed it.
      if (life->hold(LifeLock::Role::kMember) && folder.is_at_its_path()) return life;
    }
    throw RuntimeFault("'" + path.string() + "': is locked by another run.");
  } catch (const RuntimeFault& fault) {
    throw RuntimeFault(std::string("elasticity: no folder for snapshots: ") + fault.what() +
                       " Set \"elasticity\": {\"enabled\": false} to train without them.");
  }
}

}  // namespace

std::optional<ElasticRestart> ElasticRestart::of(const LoadedConfig& loaded, const ConfigText& text) {
  const char* run = std::getenv("TORCHELASTIC_RUN_ID");
  if (run == nullptr || !loaded.config.elasticity.enabled) return std::nullopt;
  // An agent that is killed leaves its processes behind, whose places are given to others.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const fs::path place = WorldFolder::place_in_memory(), folder = place / (prefix() + key_of(run, text));
  const std::vector<std::string> refused = remove_left(place, folder);
  if (!refused.empty() && loaded.communicator->local_rank() == 0) log::warning("elasticity: " + refused.front());
  ElasticRestart restart(folder, life_in(folder));
  restart.touch();
  std::int64_t newest = 0;
  const SnapshotFolder::Found found = SnapshotFolder(folder, 0, 0).find();
  for (const SealedSegment& segment : found.segments) newest = std::max(newest, segment.facts().generation);
  for (const std::string& told : loaded.communicator->all_gather_text("start: generation", std::to_string(newest))) {
    restart.generation_ = std::max<std::int64_t>(restart.generation_, std::stoll(told) + 1);
  }
  // For plugins, as in an elastic launch.
  setenv("CAPSTAN_GENERATION", std::to_string(restart.generation_).c_str(), 1);
  restart.member_ = restart.generation_ * kRanks + loaded.communicator->rank();
  return restart;
}

ElasticRestart::ElasticRestart(fs::path folder, std::unique_ptr<LifeLock> life)
    : folder_(std::move(folder)), life_(std::move(life)) {}

void ElasticRestart::touch() const { life_->touch(); }

void ElasticRestart::remove() const {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace capstan
