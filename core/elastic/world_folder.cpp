// Files of an elastic launch: whoever opens its folder reads and writes them here.

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <system_error>
#include <variant>

#include "core/elastic/world_shared.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kWorld = "world.json";
/// The file whose memory is for what a change of the processes writes once others have filled the rest, and its bytes.
constexpr const char* kReserve = "reserve";
constexpr std::uint64_t kReserved = 64 << 10;

std::string ready_name(std::int64_t member) { return "ready-" + std::to_string(member); }
std::string leaves_name(std::int64_t member) { return "leaves-" + std::to_string(member); }
std::string broken_name(std::int64_t generation) { return "broken-" + std::to_string(generation); }
std::string lacking_name(std::int64_t generation) { return "lacking-" + std::to_string(generation); }
std::string paused_name(std::int64_t generation, std::int64_t member) {
  return "paused-" + std::to_string(generation) + "-" + std::to_string(member);
}

}  // namespace

WorldFolder::WorldFolder(std::filesystem::path path)
    : WorldFolder(std::make_shared<Shared>(OwnFolder(std::move(path)), /*create=*/false)) {}

WorldFolder::WorldFolder(std::shared_ptr<Shared> shared) : path_(shared->folder.path()), shared_(std::move(shared)) {
  shared_->board.emplace(shared_->folder);
}

std::filesystem::path WorldFolder::port_file(std::int64_t generation) const {
  return path_ / ("generation-" + std::to_string(generation) + ".port");
}

void WorldFolder::join() const {
  // Another launch that takes the folder over holds all locks for a moment, and has renamed the folder after it.
  if (shared_->life.hold(LifeLock::Role::kMember) && shared_->folder.is_at_its_path()) return;
  throw RuntimeFault("'" + path_.string() +
                     "': the launcher that has started this process is gone, and another launch has taken its folder "
                     "over. This process ends.");
}

bool WorldFolder::launcher_lives() const { return shared_->life.is_held(LifeLock::Role::kLauncher); }

void WorldFolder::reserve_memory() const {
  const OpenFile file = shared_->folder.open(kReserve, O_WRONLY | O_CREAT);
  const int failure = posix_fallocate(file.descriptor(), 0, kReserved);
  if (failure == 0) return;
  throw RuntimeFault("'" + (path_ / kReserve).string() + "': no room for what the processes tell each other: " +
                     std::generic_category().message(failure) + ".");
}

void WorldFolder::give_reserve_if_full() const {
  struct statvfs facts {};
  if (fstatvfs(shared_->folder.descriptor(), &facts) != 0 || facts.f_bavail * facts.f_frsize >= kReserved) return;
  shared_->folder.remove(kReserve);
}

bool WorldFolder::can_go_on() const {
  return read().end.empty() && last_step().step > 0 && !paths_in(snapshots()).empty();
}

bool WorldFolder::is_younger_than(double seconds) const {
  // Below 0: the host has been started anew since, where the folder is on a disk.
  const double age = this->seconds() - last_step().at;
  return age >= 0 && age < seconds;
}

void WorldFolder::forget_processes() const {
  constexpr std::array kStay = {kLifeFile, kBoardFile, kWorld, kLaunchFile, kSnapshots};
  std::error_code ignored;
  for (const std::filesystem::path& path : paths_in(path_)) {
    const std::string name = path.filename().string();
    if (std::find(kStay.begin(), kStay.end(), name) == kStay.end()) std::filesystem::remove_all(path, ignored);
  }
}

void WorldFolder::write(const World& world) const {
  give_reserve_if_full();
  shared_->folder.write(kWorld, world.json().dump());
  shared_->board->count_revision();
}

World WorldFolder::read() const {
  const std::optional<std::string> text = shared_->folder.read(kWorld);
  if (!text) return {};
  const auto refuse = [&](const std::string& why) {
    throw RuntimeFault("'" + (path_ / kWorld).string() + "': is not what a launcher of this version writes (" + why +
                       "). Remove the folder once its launch has ended.");
  };
  try {
    return World::of(Json::parse(*text));
  } catch (const std::bad_variant_access&) {
    refuse("a value is of another type");
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  return {};
}

std::uint32_t WorldFolder::revision() const { return shared_->board->revision(); }

void WorldFolder::await_other_than(std::uint32_t revision, std::chrono::milliseconds patience) const {
  shared_->board->await_other_than(revision, patience);
}

void WorldFolder::tell_ready(std::int64_t member) const { shared_->folder.write(ready_name(member), ""); }
bool WorldFolder::is_ready(std::int64_t member) const { return shared_->folder.has(ready_name(member)); }

void WorldFolder::tell_paused(std::int64_t generation, std::int64_t member, bool leaves) const {
  if (leaves) shared_->folder.write(leaves_name(member), "");
  shared_->folder.write(paused_name(generation, member), "");
}
bool WorldFolder::has_paused(std::int64_t generation, std::int64_t member) const {
  return shared_->folder.has(paused_name(generation, member));
}
bool WorldFolder::leaves(std::int64_t member) const { return shared_->folder.has(leaves_name(member)); }

void WorldFolder::tell_broken(std::int64_t generation, const std::string& why) const {
  try {
    shared_->folder.write_first(broken_name(generation), why);
  } catch (const RuntimeFault&) {
    shared_->folder.write(broken_name(generation), "");  // a memory that is full takes a file without content
  }
}
std::optional<std::string> WorldFolder::why_broken(std::int64_t generation) const {
  return shared_->folder.read(broken_name(generation));
}

void WorldFolder::tell_lacking(std::int64_t generation) const { shared_->folder.write(lacking_name(generation), ""); }
bool WorldFolder::is_lacking(std::int64_t generation) const { return shared_->folder.has(lacking_name(generation)); }

bool WorldFolder::offer(const std::string& name, const std::string& text) const {
  return shared_->folder.write_first(name, text);
}

std::string WorldFolder::read(const std::string& name) const { return shared_->folder.read(name).value_or(""); }

double WorldFolder::seconds() const { return steady_seconds() + shared_->board->ahead(); }
void WorldFolder::set_clock(double ahead) const { shared_->board->set_ahead(ahead); }

void WorldFolder::tell_step(const Step& step) const { shared_->board->set_step(step); }
WorldFolder::Step WorldFolder::last_step() const { return shared_->board->step(); }

void WorldFolder::remove() const noexcept {
  std::error_code ignored;
  // Processes that are being ended may still write into it.
  for (int attempt = 0; attempt < 5 && shared_->folder.is_at_its_path(); ++attempt) {
    std::filesystem::remove_all(path_, ignored);
  }
}

}  // namespace capstan
