#include "core/elastic/world.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <ctime>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <system_error>

#include "core/errors.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

std::string system_reason() { return std::generic_category().message(errno); }

/// "capstan-elastic-1000-": what the folders of this user begin with; the launcher's number and six letters follow.
std::string prefix() { return "capstan-elastic-" + std::to_string(geteuid()) + "-"; }

/// A process that has ended and that nobody has waited for yet does not live.
bool lives(int process) {
  if (kill(process, 0) != 0 && errno == ESRCH) return false;
  std::string facts;
  std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), facts);
  const std::size_t name_ends = facts.rfind(')');
  return name_ends == std::string::npos || facts.compare(name_ends, 3, ") Z") != 0;
}

/// Appears at its place as a whole.
void write_whole(const fs::path& file, const std::string& text) {
  const fs::path aside = file.string() + "." + std::to_string(getpid());
  std::ofstream out(aside, std::ios::binary);
  out << text;
  out.close();
  if (!out || rename(aside.c_str(), file.c_str()) != 0) {
    const std::string why = system_reason();
    unlink(aside.c_str());
    throw RuntimeFault("'" + file.string() + "': cannot be written: " + why + ".");
  }
}

/// The file that tells what a launch starts.
constexpr const char* kLaunch = "launch";
/// The file whose memory is for what a change of the processes writes once others have filled the rest, and its bytes.
constexpr const char* kReserve = "reserve";
constexpr std::uint64_t kReserved = 64 << 10;

std::string ready_name(std::int64_t member) { return "ready-" + std::to_string(member); }
std::string leaves_name(std::int64_t member) { return "leaves-" + std::to_string(member); }
std::string broken_name(std::int64_t generation) { return "broken-" + std::to_string(generation); }
std::string paused_name(std::int64_t generation, std::int64_t member) {
  return "paused-" + std::to_string(generation) + "-" + std::to_string(member);
}

Json list_of(const std::vector<std::int64_t>& numbers) {
  Json list = Json::array();
  for (const std::int64_t number : numbers) list.push_back(number);
  return list;
}

std::vector<std::int64_t> numbers_of(const Json& list) {
  std::vector<std::int64_t> numbers;
  for (const Json& number : list.as_array()) numbers.push_back(number.as_integer());
  return numbers;
}

/// Whoever reads a world finds for each rank a member, its process and its host. Throws std::out_of_range.
void check(const World& world) {
  const std::size_t members = world.members.size();
  const auto check_length = [&](const char* list, std::size_t length) {
    if (length == 0 || length == members) return;
    throw std::out_of_range("a world of " + std::to_string(members) + " members has '" + list + "' of " +
                            std::to_string(length));
  };
  check_length("hosts", world.hosts.size());
  if (members > 0) check_length("processes", world.processes.size());
  const std::set<std::int64_t> different(world.members.begin(), world.members.end());
  if (different.size() != members) throw std::out_of_range("a world has one member twice");
  if (world.generation >= 0 && world.next >= 0 && (members == 0 || *different.begin() >= 0)) return;
  throw std::out_of_range("a world has numbers below 0");
}

}  // namespace

/// What changes often, in a page that all processes map.
struct WorldFolder::Board {
  std::atomic<std::uint32_t> revision, told;
  std::atomic<std::int64_t> generation, step, at_us, ahead_us;
};

bool World::spans_hosts() const {
  return std::any_of(hosts.begin(), hosts.end(), [&](std::int64_t host) { return host != hosts.front(); });
}

Json World::json() const {
  Json json = Json::object();
  json["generation"] = generation;
  json["size"] = size;
  json["members"] = list_of(members);
  json["processes"] = list_of(processes);
  json["waiting"] = list_of(waiting);
  json["hosts"] = list_of(hosts);
  json["address"] = address;
  json["change"] = change;
  json["since"] = since;
  json["waited"] = waited;
  json["losses"] = losses;
  json["wish"] = wish;
  json["end"] = end;
  json["end_code"] = std::int64_t{end_code};
  json["saver"] = saver;
  json["next"] = next;
  return json;
}

World World::of(const Json& json) {
  World world;
  world.generation = json.at("generation").as_integer();
  world.size = json.at("size").as_integer();
  world.members = numbers_of(json.at("members"));
  world.processes = numbers_of(json.at("processes"));
  world.waiting = numbers_of(json.at("waiting"));
  world.hosts = numbers_of(json.at("hosts"));
  world.address = json.at("address").as_string();
  world.change = json.at("change").as_string();
  world.since = json.at("since").as_number();
  world.waited = json.at("waited").as_number();
  world.losses = json.at("losses").as_integer();
  world.wish = json.at("wish").as_string();
  world.end = json.at("end").as_string();
  world.end_code = static_cast<int>(json.at("end_code").as_integer());
  world.saver = json.at("saver").as_integer();
  world.next = json.at("next").as_integer();
  check(world);
  return world;
}

double steady_seconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

WorldFolder::WorldFolder(fs::path path) : path_(std::move(path)) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  const fs::path file = path_ / "board";
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* page = MAP_FAILED;
  // A page of a sparse file that the memory has no room for would end the process by SIGBUS.
  if (descriptor >= 0 && (errno = posix_fallocate(descriptor, 0, sizeof(Board))) == 0) {
    page = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  const std::string why = system_reason();
  if (descriptor >= 0) close(descriptor);
  if (page == MAP_FAILED) throw RuntimeFault("'" + file.string() + "': cannot be shared: " + why + ".");
  board_ = std::shared_ptr<Board>(static_cast<Board*>(page), [](Board* board) { munmap(board, sizeof(Board)); });
}

fs::path WorldFolder::place_in_memory() {
  const fs::path memory = "/dev/shm";
  return access(memory.c_str(), W_OK | X_OK) == 0 ? memory : fs::temp_directory_path();
}

WorldFolder WorldFolder::create(const std::string& launch, const fs::path& place) {
  std::string pattern = (place / (prefix() + std::to_string(getpid()) + "-XXXXXX")).string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw RuntimeFault("'" + pattern + "': no folder for what the processes share: " + system_reason() + ".");
  }
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(place, ignored)) {
    const int launcher = launcher_of(entry.path());
    if (launcher > 0 && !lives(launcher)) left.push_back(entry.path());
  }
  bool taken_over = false;
  for (const fs::path& path : left) {
    try {
      const WorldFolder folder(path);
      if (!folder.is_left()) continue;
      // A folder that is renamed takes the place of an empty one at once: two launches that begin do not both have it.
      if (folder.goes_on_in(launch)) {
        // A second one is for another launcher of the same launch that begins now.
        taken_over = taken_over || rename(path.c_str(), pattern.c_str()) == 0;
        continue;
      }
    } catch (const std::exception&) {
      // What cannot be read is no use to anybody.
    }
    fs::remove_all(path, ignored);
  }
  try {
    WorldFolder folder{fs::path(pattern)};
    if (taken_over) folder.forget_processes();
    fs::create_directory(folder.snapshots());
    write_whole(folder.path() / kLaunch, launch);
    folder.reserve_memory();
    return folder;
  } catch (const RuntimeFault&) {
    if (!taken_over) fs::remove_all(pattern, ignored);
    throw;
  }
}

void WorldFolder::reserve_memory() const {
  const fs::path file = path_ / kReserve;
  const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const int failure = descriptor < 0 ? errno : posix_fallocate(descriptor, 0, kReserved);
  if (descriptor >= 0) close(descriptor);
  if (failure == 0) return;
  throw RuntimeFault("'" + file.string() + "': no room for what the processes tell each other: " +
                     std::generic_category().message(failure) + ".");
}

void WorldFolder::give_reserve_if_full() const {
  struct statvfs facts {};
  if (statvfs(path_.c_str(), &facts) != 0 || facts.f_bavail * facts.f_frsize >= kReserved) return;
  unlink((path_ / kReserve).c_str());
}

bool WorldFolder::is_left() const {
  const World world = read();
  const auto live = [](const std::vector<std::int64_t>& processes) {
    return std::any_of(processes.begin(), processes.end(),
                       [](std::int64_t process) { return process > 0 && lives(static_cast<int>(process)); });
  };
  return !live(world.processes) && !live(world.waiting);
}

bool WorldFolder::goes_on_in(const std::string& launch) const {
  std::error_code ignored;
  return read().end.empty() && last_step().step > 0 && read(kLaunch) == launch && !fs::is_empty(snapshots(), ignored);
}

void WorldFolder::forget_processes() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name != "board" && name != "world.json" && name != "snapshots") fs::remove_all(entry.path(), ignored);
  }
}

std::vector<fs::path> WorldFolder::living() {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place_in_memory(), ignored)) {
    const int launcher = launcher_of(entry.path());
    if (launcher > 0 && lives(launcher)) found.push_back(entry.path());
  }
  return found;
}

int WorldFolder::launcher_of(const fs::path& folder) {
  const std::string name = folder.filename().string(), start = prefix();
  if (!name.starts_with(start)) return 0;
  int launcher = 0;
  const auto read = std::from_chars(name.data() + start.size(), name.data() + name.size(), launcher);
  return read.ec == std::errc() ? launcher : 0;
}

fs::path WorldFolder::port_file(std::int64_t generation) const {
  return path_ / ("generation-" + std::to_string(generation) + ".port");
}

void WorldFolder::write(const World& world) const {
  give_reserve_if_full();
  write_whole(path_ / "world.json", world.json().dump());
  ++board_->revision;
  syscall(SYS_futex, &board_->revision, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

World WorldFolder::read() const {
  std::ifstream in(path_ / "world.json", std::ios::binary);
  if (!in) return {};
  return World::of(Json::parse(std::string(std::istreambuf_iterator<char>(in), {})));
}

std::uint32_t WorldFolder::revision() const { return board_->revision; }

void WorldFolder::await_other_than(std::uint32_t revision, std::chrono::milliseconds patience) const {
  const timespec time{patience.count() / 1000, patience.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &board_->revision, FUTEX_WAIT, revision, &time, nullptr, 0);
}

void WorldFolder::tell(const std::string& name) const {
  write_whole(path_ / name, "");
  ++board_->told;
}

bool WorldFolder::was_told(const std::string& name) const { return access((path_ / name).c_str(), F_OK) == 0; }

void WorldFolder::tell_ready(std::int64_t member) const { tell(ready_name(member)); }
bool WorldFolder::is_ready(std::int64_t member) const { return was_told(ready_name(member)); }

void WorldFolder::tell_paused(std::int64_t generation, std::int64_t member, bool leaves) const {
  if (leaves) tell(leaves_name(member));
  tell(paused_name(generation, member));
}
bool WorldFolder::has_paused(std::int64_t generation, std::int64_t member) const {
  return was_told(paused_name(generation, member));
}
bool WorldFolder::leaves(std::int64_t member) const { return was_told(leaves_name(member)); }

void WorldFolder::tell_broken(std::int64_t generation) const { tell(broken_name(generation)); }
bool WorldFolder::is_broken(std::int64_t generation) const { return was_told(broken_name(generation)); }

bool WorldFolder::offer(const std::string& name, const std::string& text) const {
  const fs::path aside = path_ / (name + "." + std::to_string(getpid()));
  write_whole(aside, text);
  const int failure = link(aside.c_str(), (path_ / name).c_str()) == 0 ? 0 : errno;
  unlink(aside.c_str());
  if (failure == 0 || failure == EEXIST) return failure == 0;
  throw RuntimeFault("'" + (path_ / name).string() +
                     "': cannot be written: " + std::generic_category().message(failure) + ".");
}

std::string WorldFolder::read(const std::string& name) const {
  std::ifstream in(path_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::uint32_t WorldFolder::told() const { return board_->told; }

double WorldFolder::seconds() const { return steady_seconds() + static_cast<double>(board_->ahead_us) * 1e-6; }
void WorldFolder::set_clock(double ahead) const { board_->ahead_us = static_cast<std::int64_t>(ahead * 1e6); }

void WorldFolder::tell_step(const Step& step) const {
  board_->generation = step.generation;
  board_->step = step.step;
  board_->at_us = static_cast<std::int64_t>(step.at * 1e6);
}

WorldFolder::Step WorldFolder::last_step() const {
  return {board_->generation, board_->step, static_cast<double>(board_->at_us) * 1e-6};
}

void WorldFolder::remove() const noexcept {
  std::error_code ignored;
  // Processes that are being ended may still write into it.
  for (int attempt = 0; attempt < 5 && fs::exists(path_, ignored); ++attempt) fs::remove_all(path_, ignored);
}

}  // namespace capstan
