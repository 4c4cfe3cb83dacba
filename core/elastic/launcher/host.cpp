#include "core/elastic/launcher/host.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "core/elastic/launcher/launched_process.hpp"
#include "core/elastic/save_progress.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

/// A process that stays stopped for so long is lost: the others wait for it.
constexpr std::chrono::seconds kStopped{3};
/// A process whose launcher was killed ends within the 10 s that core/run/interrupt.cpp gives a step, unless it saves.
/// A supervisor may start a launcher again at once, before such processes have ended.
constexpr std::chrono::seconds kOrphansEnd{12};
/// So many characters of a reason are passed on.
constexpr std::size_t kLongestReason = 500;

}  // namespace

bool has_left(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM;
  return WEXITSTATUS(status) == static_cast<int>(ExitCode::kInterrupted);
}

std::string name_in(const World& world, std::int64_t number, std::int64_t process) {
  const std::string name = process > 0 ? "process " + std::to_string(process) : "";
  const auto member = std::find(world.members.begin(), world.members.end(), number);
  if (member == world.members.end()) return name;
  return "rank " + std::to_string(member - world.members.begin()) + (name.empty() ? "" : " (" + name + ")");
}

WorldFolder launch_folder(const std::string& launched) {
  if (!WorldFolder::await_orphans(launched, WorldFolder::place_in_memory(), kOrphansEnd)) {
    log::warning("launch: processes of an earlier launcher of this launch have not ended within " +
                 std::to_string(kOrphansEnd.count()) + " s: the run goes on without what they hold.");
  }
  return WorldFolder::create(launched);
}

ElasticHost::ElasticHost(const ElasticPlan& plan, LauncherSystem& system, WorldFolder folder)
    : folder_(std::move(folder)),
      system_(system),
      train_batch_(plan.train_batch),
      wanted_(plan.processes),
      spares_(plan.spares),
      world_(folder_.read()) {}

ElasticHost::~ElasticHost() {
  send(SIGKILL);
  // Not any process: whoever became this launcher by exec may have others, which do not end with it.
  for (const auto& [unused, child] : children_) system_.await_end(child.process);
  folder_.remove();
}

void ElasticHost::start(std::int64_t number) {
  if (children_.contains(number)) {
    throw std::invalid_argument("process number " + std::to_string(number) + " is there already");
  }
  children_[number].process = system_.start([&] {
    setenv("CAPSTAN_ELASTIC_FOLDER", folder_.path().c_str(), 1);
    set_variable("CAPSTAN_ELASTIC_MEMBER", number);
    set_variable("CAPSTAN_ELASTIC_BATCH", train_batch_);
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
      unsetenv(name);
    }
  });
}

void ElasticHost::send(int signal) const {
  for (const auto& [unused, child] : children_) system_.send(child.process, signal);
}

std::vector<EndedProcess> ElasticHost::collect() {
  std::vector<EndedProcess> ended;
  for (auto& [number, child] : children_) {
    const std::optional<int> change = system_.change_of(child.process);
    if (!change) continue;
    int status = *change;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      child.stopped_since = WIFSTOPPED(status) ? std::optional(now()) : std::nullopt;
      continue;
    }
    // A program that leaves may not return the exit code of its run.
    if (child.leaves && status == 0) status = W_EXITCODE(static_cast<int>(ExitCode::kInterrupted), 0);
    if (has_left(status)) want_one_less(child);
    ended.push_back({number, status});
  }
  for (const EndedProcess& one : ended) children_.erase(one.number);
  check_stopped();
  return ended;
}

void ElasticHost::check_stopped() {
  for (auto& [number, child] : children_) {
    // When the launcher was stopped with the others, by Ctrl-Z, it goes on with them.
    if (!child.stopped_since || now() - *child.stopped_since < kStopped) continue;
    log::warning("launch: " + name_in(world_, number, child.process) + " has been stopped for " +
                 std::to_string(kStopped.count()) + " s: it counts as lost, and is ended.");
    system_.send(child.process, SIGKILL);
    child.stopped_since.reset();
  }
}

HostReport ElasticHost::report() {
  HostReport report;
  for (auto& [number, child] : children_) {
    child.able = child.able || folder_.is_ready(number);
    const bool paused = world_.generation > 0 && folder_.has_paused(world_.generation, number);
    if (paused && folder_.leaves(number)) want_one_less(child);
    report.processes.push_back({number, child.process, child.able, child.leaves, paused ? world_.generation : 0});
  }
  report.wanted = wanted_;
  report.spares = spares_;
  if (const auto why = folder_.why_broken(world_.generation)) {
    report.broken = world_.generation;
    report.why_broken = why->substr(0, std::min(why->find('\n'), kLongestReason));
  }
  report.lacks = folder_.is_lacking(world_.generation) ? world_.generation : 0;
  report.step = folder_.last_step();
  // While the run goes on, such a number would make each report a new one.
  for (const auto& [unused, child] : children_) report.written += world_.end.empty() ? 0 : written_by(child.process);
  const bool leads = world_.spans_hosts() && children_.contains(world_.members.front());
  if (const auto place = leads ? PortFile(folder_.port_file(world_.generation)).peek() : std::nullopt) {
    report.meeting = world_.generation;
    report.place = *place;
  }
  return report;
}

void ElasticHost::want_one_less(Child& child) {
  if (std::exchange(child.leaves, true) || leaving_) return;
  std::int64_t& number = child.was_member ? wanted_ : spares_;
  number = std::max<std::int64_t>(number - 1, 0);
}

void ElasticHost::leave() {
  leaving_ = true;
  wanted_ = spares_ = 0;
  send(SIGTERM);
}

void ElasticHost::end(std::int64_t number) const {
  if (const auto child = children_.find(number); child != children_.end()) system_.send(child->second.process, SIGKILL);
}

void ElasticHost::halt(const std::string& why) {
  World world = world_;
  if (world.members.empty() || children_.empty()) return;
  ++world.generation;
  world.members.clear();
  world.hosts.clear();
  world.processes.clear();
  world.wish.clear();
  world.change = why;
  world.since = folder_.seconds();
  world.waited = 0;
  write(world);
}

void ElasticHost::remember(const std::string& votes) {
  world_.votes = votes;
  folder_.write(world_);
}

void ElasticHost::write(const World& world) {
  const std::string votes = std::move(world_.votes);
  world_ = world;
  world_.votes = votes;
  for (const std::int64_t number : world.members) {
    if (const auto child = children_.find(number); child != children_.end()) child->second.was_member = true;
  }
  if (shown_ && world.members.empty()) shown_.reset();
  folder_.write(world_);
}

void ElasticHost::show_meeting(std::int64_t generation, const PortEntry& place) {
  if (generation != world_.generation || !world_.spans_hosts() || children_.contains(world_.members.front())) return;
  shown_ = std::make_unique<PortFile>(folder_.port_file(generation));
  shown_->write(place);
}

}  // namespace capstan
