#include "cli/elastic_processes.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/launched_process.hpp"
#include "cli/numbers.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

/// How often what gives no signal is looked at.
constexpr timespec kLookAgain{0, 20'000'000};
/// A process that stays stopped for so long is lost: the others wait for it.
constexpr std::chrono::seconds kStopped{3};
/// So many processes in a row that end before they could join are enough to start no more.
constexpr int kFailedStarts = 3;
/// So many generations in a row that do not come farther than one before.
constexpr int kWithoutProgress = 20;
/// How long the others may take to notice a failure and to say so, and then to end when asked to.
constexpr std::chrono::milliseconds kToNotice{2000}, kToEnd{1000};
/// How long the others may take to end where rank 0 has.
constexpr std::chrono::minutes kToFinish{1};
/// How long processes that are to end may take to save.
constexpr std::chrono::minutes kToSave{30};

constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);

/// A signal has asked the process to end, and it has, after its step or at once.
bool left(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM;
  return WEXITSTATUS(status) == kInterrupted;
}

}  // namespace

ElasticProcesses::ElasticProcesses(const LaunchArguments& arguments, ElasticPlan plan)
    : arguments_(arguments),
      plan_(std::move(plan)),
      folder_(WorldFolder::create(plan_.launched)),
      wanted_(plan_.processes),
      spares_(arguments.spares),
      words_(words_of(arguments.command)) {
  sigemptyset(&signals_);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1}) sigaddset(&signals_, number);
  sigprocmask(SIG_BLOCK, &signals_, &before_);
  waiting_since_ = Clock::now();
  take_over();
  world_.size = wanted_;
  publish();
  while (count() < wanted_ + spares_) start();
}

ElasticProcesses::~ElasticProcesses() {
  send(SIGKILL);
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  folder_.remove();
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void ElasticProcesses::take_over() {
  const World left = folder_.read();
  if (left.generation == 0) return;
  const WorldFolder::Step last = folder_.last_step();
  taken_over_ = true;
  world_.generation = left.generation;
  world_.losses = left.losses + static_cast<std::int64_t>(left.members.size());
  world_.change = "all processes and their launcher were lost";
  world_.since = last.at;
  world_.waited = steady_seconds() - last.at;
  best_step_ = last.step;
  log::warning("launch: a launch of this command was lost with all its processes, at step " + grouped(last.step) +
               ". This one goes on from what they have left in '" + folder_.path().string() +
               "'. To begin anew, end this one with Ctrl-C, and launch again.");
}

int ElasticProcesses::run() {
  while (!children_.empty()) {
    siginfo_t info{};
    const int number = sigtimedwait(&signals_, &info, &kLookAgain);
    if (number > 0) signalled(number);
    collect();
    look_at_what_was_told();
    check_stopped();
    if (!ending_) decide();
    hurry();
  }
  return code_;
}

void ElasticProcesses::signalled(int number) {
  if (number == SIGUSR1) wanted_ = std::min<std::int64_t>(wanted_ + 1, arguments_.elastic->most);
  if (number != SIGINT && number != SIGTERM) return;
  if (++interrupts_ > 1) end_at_ = Clock::now();
  // The others read it: a signal might reach them twice, from here and from the terminal.
  if (!ending_) end("the launcher was interrupted", kInterrupted, world_.members.empty());
}

bool ElasticProcesses::is_member(std::int64_t number) const {
  return std::find(world_.members.begin(), world_.members.end(), number) != world_.members.end();
}

std::int64_t ElasticProcesses::rank_of(std::int64_t number) const {
  return std::find(world_.members.begin(), world_.members.end(), number) - world_.members.begin();
}

std::string ElasticProcesses::name_of(std::int64_t number) const {
  const auto child = children_.find(number);
  const std::string process = child == children_.end() ? "" : "process " + std::to_string(child->second.process);
  if (!is_member(number)) return process;
  return "rank " + std::to_string(rank_of(number)) + (process.empty() ? "" : " (" + process + ")");
}

void ElasticProcesses::start() {
  const std::int64_t number = next_number_++;
  children_[number].process = start_process(words_, before_, static_cast<int>(plan_.processes), [&] {
    setenv("CAPSTAN_ELASTIC_FOLDER", folder_.path().c_str(), 1);
    set_variable("CAPSTAN_ELASTIC_MEMBER", number);
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
      unsetenv(name);
    }
  });
}

void ElasticProcesses::collect() {
  std::vector<std::pair<std::int64_t, int>> gone;
  for (auto& [number, child] : children_) {
    int status = 0;
    if (waitpid(child.process, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.process) continue;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      child.stopped_since = WIFSTOPPED(status) ? std::optional(Clock::now()) : std::nullopt;
      continue;
    }
    // No generation is to begin with another one of them.
    child.gone = true;
    gone.emplace_back(number, status);
  }
  for (const auto& [number, status] : gone) ended(number, children_[number], status);
}

void ElasticProcesses::ended(std::int64_t number, const Child& child, int status) {
  const int code = code_of(status);
  if (ending_) {
    const bool expected = !WIFSIGNALED(status) || asked_ || interrupts_ > 1;
    children_.erase(number);
    // Who dies while the others save may take what they have not saved yet with it.
    if (!expected && code_ != 0 && (world_.saver < 0 || world_.saver == number)) appoint_saver();
    return;
  }
  if (code == 0) return ended_well(number);
  if (!WIFSIGNALED(status) && !left(status) && child.was_member) {
    // What a process refuses or fails at by itself, others would as well.
    const std::string who = name_of(number);
    children_.erase(number);
    log::error(who + " " + how_it_ended(status) + (children_.empty() ? "." : "; the others are ended."));
    return end(who + " " + how_it_ended(status), code, has_begun());
  }
  lost(number, child, status);
}

void ElasticProcesses::ended_well(std::int64_t number) {
  const bool leads = is_member(number) && rank_of(number) == 0;
  children_.erase(number);
  finishing_ = true;
  if (leads) end("the run has finished", 0, false);
}

/// A process has ended that the run goes on without.
void ElasticProcesses::lost(std::int64_t number, const Child& child, int status) {
  const bool leaves = left(status), member = is_member(number);
  const std::string what = name_of(number) + (leaves ? " has left" : " " + how_it_ended(status));
  const bool able = child.able, was_member = child.was_member, counted = child.leaves;
  children_.erase(number);
  if (leaves && !counted) --(was_member ? wanted_ : spares_);
  if (!leaves && was_member) ++world_.losses;
  if (!member) {
    if (leaves || was_member || (able && WIFSIGNALED(status))) return;
    ++failed_starts_;
    log::warning("launch: " + what + " before it could join.");
    return;
  }
  finishing_ = false;
  regroup(what);
}

void ElasticProcesses::look_at_what_was_told() {
  const std::uint32_t now = folder_.told();
  if (now == told_) return;
  told_ = now;
  bool changed = false;
  for (auto& [number, child] : children_) {
    if (child.able || !folder_.is_ready(number)) continue;
    child.able = changed = true;
    failed_starts_ = 0;
    joined_ = number;
  }
  if (ending_) return;
  if (changed) publish();
  check_broken();
  check_paused();
}

void ElasticProcesses::check_broken() {
  if (world_.members.empty() || !folder_.is_broken(world_.generation)) return;
  regroup("the processes could not connect");
}

/// Once all members have ended the same step, the next generation begins, or the run ends where all of them leave.
void ElasticProcesses::check_paused() {
  if (world_.members.empty()) return;
  std::string leaving;
  for (const std::int64_t number : world_.members) {
    if (!folder_.has_paused(world_.generation, number)) return;
    if (folder_.leaves(number)) leaving += (leaving.empty() ? "" : ", ") + name_of(number);
  }
  for (const std::int64_t number : world_.members) {
    Child& child = children_[number];
    if (!folder_.leaves(number) || std::exchange(child.leaves, true)) continue;
    --wanted_;
  }
  if (able().empty()) return end("all processes were asked to end", kInterrupted, false);
  regroup(leaving.empty() ? (world_.wish.empty() ? "all members have paused" : world_.wish) : leaving + " has left");
}

/// Those that can train now, in the order of their ranks: who has one keeps it, and who waits takes the place of one
/// that is gone.
std::vector<std::int64_t> ElasticProcesses::able() const {
  const auto can = [&](std::int64_t number) {
    const auto child = children_.find(number);
    return child != children_.end() && child->second.able && !child->second.gone && !folder_.leaves(number);
  };
  std::vector<std::int64_t> waiting, list;
  for (const auto& [number, child] : children_) {
    if (can(number) && std::find(ranks_.begin(), ranks_.end(), number) == ranks_.end()) waiting.push_back(number);
  }
  auto next = waiting.begin();
  for (const std::int64_t number : ranks_) {
    if (can(number)) {
      list.push_back(number);
    } else if (next != waiting.end()) {
      list.push_back(*next++);
    }
  }
  list.insert(list.end(), next, waiting.end());
  return list;
}

/// The most of so many processes that may train together; 0: none.
std::int64_t ElasticProcesses::size_for(std::size_t able) const {
  std::int64_t size = 0;
  for (const std::int64_t one : plan_.sizes) {
    if (one <= static_cast<std::int64_t>(able) && one <= std::max(wanted_, plan_.sizes.front())) size = one;
  }
  return size;
}

/// "1 process is left where at least 2 are needed".
std::string ElasticProcesses::too_few() const {
  const auto left = static_cast<std::int64_t>(able().size());
  return grouped(left) + (left == 1 ? " process is" : " processes are") + " left where at least " +
         grouped(plan_.sizes.front()) + " are needed";
}

void ElasticProcesses::regroup(const std::string& change) {
  const WorldFolder::Step step = folder_.last_step();
  // A generation that did no step has only prolonged what ended the one before.
  if (std::exchange(taken_over_, false)) {
    // take_over() has said what happened.
  } else if (step.generation == world_.generation || world_.generation == 0) {
    world_.since = steady_seconds();
    world_.waited = 0;
    world_.change = change;
  } else if (!change.empty()) {
    world_.change += "; " + change;
  }
  without_progress_ = step.step > best_step_ ? 0 : without_progress_ + 1;
  best_step_ = std::max(best_step_, step.step);
  if (without_progress_ >= kWithoutProgress) {
    return fail("the run has not come farther than step " + grouped(best_step_) + " in " +
                    std::to_string(kWithoutProgress) + " attempts; the last ended because " + change + ".",
                static_cast<int>(ExitCode::kFailure));
  }
  std::vector<std::int64_t> members = able();
  members.resize(static_cast<std::size_t>(size_for(members.size())));
  if (members.empty()) {
    if (!waiting_since_) waiting_since_ = Clock::now();
  } else {
    if (waiting_since_) world_.waited += std::chrono::duration<double>(Clock::now() - *waiting_since_).count();
    waiting_since_.reset();
    ranks_ = members;
    world_.size = static_cast<std::int64_t>(members.size());
  }
  ++world_.generation;
  world_.members = std::move(members);
  world_.wish.clear();
  for (const std::int64_t number : world_.members) children_[number].was_member = true;
  changed_at_ = Clock::now();
  publish();
  if (world_.generation == 1) return;
  const std::string text = "launch: " + change + "; ";
  if (world_.members.empty()) {
    return log::warning(text + too_few() + ": the run waits for more.");
  }
  log::warning(text + grouped(static_cast<std::int64_t>(world_.members.size())) +
               (world_.members.size() == 1 ? " process goes on" : " processes go on") + " (generation " +
               grouped(world_.generation) + ").");
}

void ElasticProcesses::decide() {
  replace();
  grow();
  check_waiting();
}

void ElasticProcesses::check_stopped() {
  for (auto& [number, child] : children_) {
    // When the launcher was stopped with the others, by Ctrl-Z, it goes on with them.
    if (!child.stopped_since || Clock::now() - *child.stopped_since < kStopped) continue;
    log::warning("launch: " + name_of(number) + " has been stopped for " + std::to_string(kStopped.count()) +
                 " s: it counts as lost, and is ended.");
    kill(child.process, SIGKILL);
    child.stopped_since.reset();
  }
}

void ElasticProcesses::replace() {
  if (finishing_ || count() >= wanted_ + spares_ || failed_starts_ > kFailedStarts) return;
  if (failed_starts_ == kFailedStarts) {
    ++failed_starts_;  // said once
    log::error("launch: " + std::to_string(kFailedStarts) +
               " processes in a row ended before they could join. No more are started.");
    if (world_.members.empty()) fail(too_few() + ".", static_cast<int>(ExitCode::kFailure));
    return;
  }
  // What the members lack they wait for; a spare can wait until they train again.
  const bool urgent = static_cast<std::int64_t>(world_.members.size()) < wanted_;
  const bool trains = folder_.last_step().generation == world_.generation;
  if (urgent || trains) start();
}

/// More processes may train together than do: at once where none can, otherwise after a step.
void ElasticProcesses::grow() {
  const std::int64_t size = size_for(able().size());
  const auto members = static_cast<std::int64_t>(world_.members.size());
  if (size <= members || !world_.wish.empty() || finishing_) return;
  const std::string who =
      joined_ && children_.contains(*joined_) ? name_of(*joined_) + " has joined" : "there are more processes";
  if (members == 0) {
    // The first generation waits for all, later ones do not.
    if ((world_.generation == 0 || taken_over_) && size < wanted_ && failed_starts_ <= kFailedStarts) return;
    return regroup(who);
  }
  const bool trains = folder_.last_step().generation == world_.generation;
  if (!trains || Clock::now() - changed_at_ < plan_.min_time) return;
  world_.wish = who;
  publish();
}

void ElasticProcesses::check_waiting() {
  if (!waiting_since_ || world_.generation == 0) return;
  if (Clock::now() - *waiting_since_ < plan_.wait) return;
  fail(too_few() + ", and there were no more within " + short_number(plan_.wait.count()) + " s (capstan.elastic.wait).",
       static_cast<int>(ExitCode::kFailure));
}

void ElasticProcesses::fail(const std::string& why, int code) {
  log::error("launch: " + why);
  end(why, code, has_begun());
}

void ElasticProcesses::end(const std::string& why, int code, bool save) {
  ending_ = true;
  code_ = code;
  world_.end = why;
  world_.end_code = code;
  const bool failed = code != 0 && code != kInterrupted;
  if (failed) end_at_ = Clock::now() + kToNotice;
  if (code == 0) end_at_ = Clock::now() + kToFinish;
  if (save) return appoint_saver();
  publish();
}

/// One that lives, a new one where none does.
void ElasticProcesses::appoint_saver() {
  if (!plan_.saves || !has_begun()) return publish();
  world_.saver = -1;
  if (++savers_ > kFailedStarts) return publish();
  if (const std::vector<std::int64_t> living = able(); !living.empty()) {
    world_.saver = living.back();
  } else {
    world_.saver = next_number_;
    start();
  }
  end_at_ = Clock::now() + kToSave;
  publish();
}

void ElasticProcesses::publish() {
  world_.processes.clear();
  world_.waiting.clear();
  for (const std::int64_t number : world_.members) {
    const auto child = children_.find(number);
    world_.processes.push_back(child == children_.end() ? 0 : child->second.process);
  }
  for (const auto& [number, child] : children_) {
    if (!is_member(number)) world_.waiting.push_back(child.process);
  }
  folder_.write(world_);
}

/// Ends those that are left after a failure: kindly, then not.
void ElasticProcesses::hurry() {
  if (!end_at_ || children_.empty() || Clock::now() < *end_at_) return;
  send(asked_ ? SIGKILL : SIGTERM);
  asked_ = true;
  end_at_ = Clock::now() + kToEnd;
}

void ElasticProcesses::send(int number) const {
  for (const auto& [unused, child] : children_) kill(child.process, number);
}

}  // namespace capstan::cli
