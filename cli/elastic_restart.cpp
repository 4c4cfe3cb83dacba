#include "cli/elastic_restart.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "cli/version.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/elastic/world.hpp"
#include "core/errors.hpp"
#include "core/xxh3.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// What a run that nobody touches for so long has left is no use to anybody: torchrun starts processes anew at once, or
/// once a host has come.
constexpr std::chrono::minutes kLeft{10};
/// More ranks than that no start has.
constexpr std::int64_t kRanks = 1 << 20;

std::string prefix() { return "capstan-torchrun-" + std::to_string(geteuid()) + "-"; }

/// The same for all starts of a run, another one for other runs of this host.
std::string key_of(const char* run, const ConfigText& text) {
  const std::string all = std::string(run) + "\n" + version_text() + "\n" + build_id_of("/proc/self/exe") + "\n" +
                          fs::current_path().string() + "\n" + text.source + "\n" + text.text;
  return hex(xxh3(all.data(), all.size()));
}

/// Open and locked for reading, which says that its run is alive; -1 where it cannot be.
int lock_in(const fs::path& folder) {
  const int file = open((folder / "alive").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file >= 0 && flock(file, LOCK_SH | LOCK_NB) == 0) return file;
  if (file >= 0) close(file);
  return -1;
}

/// Removes what runs have left that nobody goes on with.
void remove_left(const fs::path& place, const fs::path& own) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix()) || entry.path() == own) continue;
    const fs::path alive = entry.path() / "alive";
    const int file = open(alive.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    struct stat facts {};
    const bool locked = flock(file, LOCK_EX | LOCK_NB) != 0;
    const bool old = fstat(file, &facts) == 0 &&
                     std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(facts.st_mtime) > kLeft;
    if (!locked && old) fs::remove_all(entry.path(), ignored);
    close(file);
  }
}

}  // namespace

std::optional<ElasticRestart> ElasticRestart::of(const LoadedConfig& loaded, const ConfigText& text) {
  const char* run = std::getenv("TORCHELASTIC_RUN_ID");
  if (run == nullptr || !loaded.config.elasticity.enabled) return std::nullopt;
  // An agent that is killed leaves its processes behind, whose places are given to others.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const fs::path place = WorldFolder::place_in_memory(), folder = place / (prefix() + key_of(run, text));
  remove_left(place, folder);
  const bool made = mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  struct stat facts {};
  const bool own = made && lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid();
  const int lock = own ? lock_in(folder) : -1;
  if (lock < 0) {
    throw RuntimeFault("'" + folder.string() + "': no folder for snapshots: " + std::generic_category().message(errno) +
                       ". Set \"elasticity\": {\"enabled\": false} to train without them.");
  }
  ElasticRestart restart(folder, lock);
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

ElasticRestart::ElasticRestart(ElasticRestart&& other) noexcept
    : folder_(std::move(other.folder_)),
      lock_(std::exchange(other.lock_, -1)),
      generation_(other.generation_),
      member_(other.member_) {}

ElasticRestart::~ElasticRestart() {
  if (lock_ >= 0) close(lock_);
}

void ElasticRestart::touch() const { futimens(lock_, nullptr); }

void ElasticRestart::remove() const {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace capstan::cli
