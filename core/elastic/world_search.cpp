// Folders of elastic launches, those that live and those that were left: looks for them, takes one over, makes one.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "core/elastic/world_shared.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

/// So long a folder without kLaunchFile may be one that is being made.
constexpr double kBeingMade = 60;
/// So long after its last step the run of a launch that is gone stays for another launch of the same text: whoever
/// starts such launches anew does it sooner.
constexpr double kStays = 600;

/// "capstan-elastic-1000-": what the folders of this user begin with; the launcher's number and six letters follow.
std::string prefix_of_launches() { return "capstan-elastic-" + std::to_string(geteuid()) + "-"; }

bool is_gone(const fs::path& path) {
  struct stat facts {};
  return lstat(path.c_str(), &facts) != 0 && errno == ENOENT;
}

std::vector<fs::path> named_as_launches(const fs::path& place) {
  std::vector<fs::path> paths = paths_in(place);
  std::erase_if(paths, [](const fs::path& path) { return WorldFolder::launcher_of(path) == 0; });
  return paths;
}

/// One line, however many there are: anybody may create folders in shared memory.
void warn_of_refused(const std::vector<std::string>& refused) {
  if (refused.empty()) return;
  const std::size_t others = refused.size() - 1;
  log::warning("launch: " + refused.front() +
               (others == 0 ? "" : " " + std::to_string(others) + " more cannot be used: 'capstan launch --status'."));
}

/// Whether processes of a launch of this text have lost their launcher and have not ended yet.
bool has_orphans(const fs::path& path, const std::string& launch) {
  try {
    const OwnFolder folder(path);
    if (folder.read(kLaunchFile) != launch) return false;
    const LifeLock life(folder, /*create=*/false);
    return !life.is_held(LifeLock::Role::kLauncher) && life.is_held(LifeLock::Role::kMember);
  } catch (const RuntimeFault&) {
    return false;  // create() says why
  }
}

/// Why a folder cannot be written to; empty where it can.
std::string why_unusable(const fs::path& place) {
  return access(place.c_str(), W_OK | X_OK) == 0 ? "" : std::generic_category().message(errno);
}

}  // namespace

fs::path WorldFolder::place_in_memory(std::string* why_not) {
  fs::path memory = "/dev/shm";
  const std::string memory_problem = why_unusable(memory);
  if (why_not) *why_not = memory_problem;
  if (memory_problem.empty()) return memory;
  std::error_code error;
  fs::path other = fs::temp_directory_path(error);
  const std::string other_problem = error ? error.message() : why_unusable(other);
  if (other_problem.empty()) return other;
  const char* given = std::getenv("TMPDIR");
  throw RuntimeFault("'/dev/shm': cannot be written to (" + memory_problem +
                     "), nor can the folder for temporary files" +
                     (given ? " (TMPDIR=" + std::string(given) + ": " : " (") + other_problem +
                     "). The processes of an elastic launch share one of them: mount -t tmpfs tmpfs /dev/shm, or set "
                     "TMPDIR to a folder of yours.");
}

int WorldFolder::launcher_of(const fs::path& folder) {
  const std::string name = folder.filename().string(), start = prefix_of_launches();
  if (!name.starts_with(start)) return 0;
  int launcher = 0;
  const auto read = std::from_chars(name.data() + start.size(), name.data() + name.size(), launcher);
  return read.ec == std::errc() && launcher > 0 ? launcher : 0;
}

/// Whether the run of a launch that is gone can go on from the folder.
bool WorldFolder::is_left(const fs::path& path) {
  try {
    return WorldFolder(path).can_go_on();
  } catch (const RuntimeFault&) {
    return false;  // create() says why, and removes it
  }
}

WorldFolder::Listed WorldFolder::list(const fs::path& place) {
  Listed listed;
  for (const fs::path& path : named_as_launches(place)) {
    try {
      OwnFolder folder(path);
      if (!folder.has(kLaunchFile)) continue;
      const LifeLock life(folder, /*create=*/false);
      const bool lives = life.is_held(LifeLock::Role::kLauncher) || life.is_held(LifeLock::Role::kMember);
      if (lives) {
        listed.living.push_back(path);
      } else if (is_left(path)) {
        listed.left.push_back(path);
      }
    } catch (const RuntimeFault& fault) {
      if (!is_gone(path)) listed.refused.emplace_back(fault.what());
    }
  }
  return listed;
}

/// The folder, with all of its locks; null where it is being made, a process of its launch lives, or it is of `not_of`.
std::shared_ptr<WorldFolder::Shared> WorldFolder::lock_if_left(const fs::path& path, const std::string* not_of) {
  OwnFolder folder(path);
  if (!folder.has(kLaunchFile)) {
    if (folder.seconds_since_change() < kBeingMade) return nullptr;
    // Its launcher was killed before it had put anything in.
    if (rmdir(path.c_str()) == 0) return nullptr;
  }
  // Not even for a moment: its launcher may begin now and look at the lock.
  if (not_of && folder.read(kLaunchFile) == *not_of) return nullptr;
  auto shared = std::make_shared<Shared>(std::move(folder), /*create=*/false);
  return shared->life.take_all() && shared->folder.is_at_its_path() ? shared : nullptr;
}

/// A folder that a launch of `launch` can go on from, with its locks, or null. Removes folders from which nobody goes
/// on any more.
std::shared_ptr<WorldFolder::Shared> WorldFolder::search_left(const std::string& launch, const fs::path& place) {
  std::shared_ptr<Shared> found;
  std::vector<std::string> refused;
  for (const fs::path& path : named_as_launches(place)) {
    std::shared_ptr<Shared> left;
    try {
      left = lock_if_left(path, found ? &launch : nullptr);
    } catch (const RuntimeFault& fault) {
      if (!is_gone(path)) refused.emplace_back(fault.what());
    }
    if (!left) continue;
    try {
      if (left->folder.has(kLaunchFile)) {
        const WorldFolder folder(left);
        const bool is_same = folder.read(kLaunchFile) == launch, can_go_on = folder.can_go_on();
        // A second one is for another launcher of the same launch that begins now.
        if (is_same && can_go_on) found = left;
        if (can_go_on && (is_same || folder.is_younger_than(kStays))) continue;
      }
    } catch (const RuntimeFault& fault) {
      log::warning("launch: " + std::string(fault.what()) +
                   " Its launch is gone with all processes, and nobody can go on from it: the folder is removed.");
    }
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  warn_of_refused(refused);
  return found;
}

bool WorldFolder::await_orphans(const std::string& launch, const fs::path& place, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kLookAgain{20};
  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    const std::vector<fs::path> paths = named_as_launches(place);
    if (std::none_of(paths.begin(), paths.end(), [&](const fs::path& path) { return has_orphans(path, launch); })) {
      return true;
    }
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kLookAgain);
  }
}

WorldFolder WorldFolder::create(const std::string& launch) {
  std::string why_not;
  const fs::path place = place_in_memory(&why_not);
  if (!why_not.empty()) {
    log::warning("launch: '/dev/shm' cannot be written to (" + why_not + "): the processes share '" + place.string() +
                 "' instead, which may be on a disk. Mount a tmpfs at /dev/shm, or set TMPDIR to a folder in memory.");
  }
  return create(launch, place);
}

WorldFolder WorldFolder::create(const std::string& launch, const fs::path& place) {
  const std::shared_ptr<Shared> left = search_left(launch, place);
  std::string path = (place / (prefix_of_launches() + std::to_string(getpid()) + "-XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr) {
    throw RuntimeFault("'" + path +
                       "': no folder for what the processes share: " + std::generic_category().message(errno) + ".");
  }
  if (left && left->folder.move_to(path)) {
    left->life.release(LifeLock::Role::kMember);
    return furnish(left, launch, /*taken_over=*/true);
  }
  try {
    const auto made = std::make_shared<Shared>(OwnFolder(path), /*create=*/true);
    made->life.hold(LifeLock::Role::kLauncher);
    Board::create(made->folder);
    return furnish(made, launch, /*taken_over=*/false);
  } catch (const RuntimeFault&) {
    std::error_code ignored;
    fs::remove_all(path, ignored);
    throw;
  }
}

WorldFolder WorldFolder::furnish(const std::shared_ptr<Shared>& shared, const std::string& launch, bool taken_over) {
  WorldFolder folder(shared);
  if (taken_over) folder.forget_processes();
  if (mkdirat(shared->folder.descriptor(), kSnapshots, 0700) != 0 && errno != EEXIST) {
    throw RuntimeFault("'" + folder.snapshots().string() +
                       "': cannot be created: " + std::generic_category().message(errno) + ".");
  }
  folder.reserve_memory();
  shared->folder.write(kLaunchFile, launch);
  return folder;
}

}  // namespace capstan
