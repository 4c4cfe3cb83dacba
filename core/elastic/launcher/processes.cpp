#include "core/elastic/launcher/processes.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/comm/port_file.hpp"
#include "core/elastic/save_progress.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/process/child.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

/// So many processes in a row that end before they could join are enough to start no more.
constexpr int kFailedStarts = 3;
/// So many generations in a row that do not come farther than one before.
constexpr int kWithoutProgress = 20;
/// How long the others may take to notice a failure and to say so, and then to end when asked to.
constexpr std::chrono::milliseconds kToNotice{2000}, kToEnd{1000};
/// How long the others may take to end where rank 0 has.
constexpr std::chrono::minutes kToFinish{1};
/// How long the first generation waits for more hosts after one has come, unless there are as many processes as may
/// train.
constexpr std::chrono::seconds kForHosts{5};

constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);

}  // namespace

ElasticProcesses::ElasticProcesses(const ElasticPlan& plan, ElasticHost& host, ElasticRendezvous* rendezvous)
    : plan_(plan),
      host_(host),
      rendezvous_(rendezvous),
      own_(rendezvous ? rendezvous->number() : 0),
      host_came_at_(host.now()),
      changed_at_(host.now()),
      time_to_write_(time_to_write()) {
  hosts_[own_].name = own_host_name();
  hosts_[own_].report = host_.report();
  waiting_since_ = host_.now();
  if (rendezvous_ && !rendezvous_->is_first()) {
    hosts_[own_].id = rendezvous_->membership().own();
    rendezvous_->takes_over() ? take_over() : succeed();
    name_run();
    lead_those_met();
  } else {
    if (rendezvous_) {
      hosts_[own_].id = rendezvous_->membership().own();
      rendezvous_->remember();
    }
    take_over();
    name_run();
    publish();
    while (count_on(own_) < host_.report().wanted + host_.report().spares) start(own_);
  }
}

/// Gives the run its name and its size before processes read the first world.
void ElasticProcesses::name_run() {
  if (world_.run.empty()) world_.run = random_secret();
  if (world_.members.empty()) world_.size = std::max(plan_.processes, plan_.sizes.front());
}

void ElasticProcesses::take_over() {
  const World left = host_.folder().read();
  if (left.generation == 0) return;
  const WorldFolder::Step last = host_.folder().last_step();
  taken_over_ = true;
  world_.generation = left.generation;
  world_.next = left.next;
  world_.run = left.run;
  world_.losses = left.losses + static_cast<std::int64_t>(left.members.size());
  world_.change = "all processes and their launcher were lost";
  world_.since = last.at;
  world_.waited = host_.folder().seconds() - last.at;
  best_step_ = last.step;
  log::warning("launch: a launch of this command was lost with all its processes, at step " + grouped(last.step) +
               ". This one goes on from what they have left in '" + host_.folder().path().string() +
               "'. To begin anew, end this one with Ctrl-C, and launch again.");
}

/// Whether there is something left to do for this launcher: a witness waits for processes of other hosts.
bool ElasticProcesses::has_work() const {
  if (!children_.empty() || (!is_settled() && !ending_)) return true;
  return plan_.witness && !ending_ && (world_.generation == 0 || hosts_.size() > 1);
}

std::optional<int> ElasticProcesses::run() {
  do {  // a launcher that takes the lead has perhaps no processes yet
    std::vector<int> descriptors;
    if (rendezvous_) descriptors.push_back(rendezvous_->listener().descriptor());
    for (const auto& [unused, host] : hosts_) {
      if (host.link) descriptors.push_back(host.link->descriptor());
    }
    host_.await(descriptors);
    while (const int number = host_.next_signal()) signalled(number);
    collect();
    take(own_, host_.report());
    if (rendezvous_) hear_hosts();
    if (outnumbered_) return std::nullopt;
    if (is_settled()) {
      check_broken();
      check_lacking();
      check_paused();
    }
    if (!ending_ && is_settled()) decide();
    hurry();
    if (host_.is_empty() && host_.is_leaving() && hosts_.size() > 1 && !ending_ && leave_others()) {
      log::info("launch: this host has left the run; the launcher of another one leads from here on.");
      return kInterrupted;
    }
  } while (has_work());
  return plan_.witness && !ending_ ? kInterrupted : code_;
}

void ElasticProcesses::signalled(int number) {
  if (number == SIGUSR1 && wanted() < plan_.most) host_.want_one_more();
  if (number != SIGINT && number != SIGTERM) return;
  if (++interrupts_ > 1) {
    end_at_ = host_.now();
    written_.reset();
  }
  if (ending_ || host_.is_leaving()) return;
  // The others read it: a signal might reach them twice, from here and from the terminal.
  if (hosts_.size() == 1 && is_settled()) return end_interrupted();
  log::info("launch: this host leaves the run after the step under way.");
  host_.leave();
}

void ElasticProcesses::end_interrupted() { end("the launcher was interrupted", kInterrupted, world_.members.empty()); }

bool ElasticProcesses::is_member(std::int64_t number) const {
  return std::find(world_.members.begin(), world_.members.end(), number) != world_.members.end();
}

std::int64_t ElasticProcesses::rank_of(std::int64_t number) const {
  return std::find(world_.members.begin(), world_.members.end(), number) - world_.members.begin();
}

std::string ElasticProcesses::name_of(std::int64_t number) const {
  const auto child = children_.find(number);
  if (child == children_.end()) return name_in(world_, number, 0);
  const auto host = hosts_.find(child->second.host);
  return name_in(world_, number, child->second.process) +
         (hosts_.size() > 1 && host != hosts_.end() ? " on " + host->second.name : "");
}

std::int64_t ElasticProcesses::wanted() const {
  std::int64_t sum = 0;
  for (const auto& [unused, host] : hosts_) sum += host.report.wanted;
  return std::min<std::int64_t>(sum, plan_.most);
}

std::int64_t ElasticProcesses::count_on(std::int64_t host) const {
  return std::count_if(children_.begin(), children_.end(), [&](const auto& one) { return one.second.host == host; });
}

/// The farthest step that the processes of any host tell of.
WorldFolder::Step ElasticProcesses::last_step() const {
  WorldFolder::Step last = host_.folder().last_step();
  for (const auto& [unused, host] : hosts_) {
    const WorldFolder::Step& step = host.report.step;
    if (std::pair(step.generation, step.step) > std::pair(last.generation, last.step)) last = step;
  }
  return last;
}

/// By the processes of all hosts, as they tell it.
std::int64_t ElasticProcesses::written() const {
  std::int64_t sum = 0;
  for (const auto& [unused, host] : hosts_) sum += host.report.written;
  return sum;
}

void ElasticProcesses::start(std::int64_t host) {
  const std::int64_t number = world_.next++;
  children_[number].host = host;
  if (host == own_) return host_.start(number);
  Json message = Json::object();
  message["start"] = number;
  hosts_.at(host).link->send(message);
}

/// What has become of the processes of this host.
void ElasticProcesses::collect() {
  const std::vector<EndedProcess> all = host_.collect();
  // No generation is to begin with another one of them.
  for (const EndedProcess& one : all) children_[one.number].gone = true;
  hosts_.at(own_).report = host_.report();
  for (const EndedProcess& one : all) ended(one.number, one.status);
}

/// What a host tells of its processes.
void ElasticProcesses::take(std::int64_t host, HostReport report) {
  bool changed = false;
  for (const HostReport::Process& one : report.processes) {
    const auto found = children_.find(one.number);
    if (found == children_.end()) continue;
    Child& child = found->second;
    changed = changed || child.process != one.process || child.able != one.able;
    if (one.able && !child.able) {
      hosts_.at(host).failed_starts = 0;
      joined_ = one.number;
    }
    child.process = one.process;
    child.able = one.able;
    child.leaves = one.leaves;
    child.paused = one.paused;
  }
  hosts_.at(host).report = std::move(report);
  if (changed && !ending_) publish();
}

void ElasticProcesses::ended(std::int64_t number, int status) {
  const auto found = children_.find(number);
  if (found == children_.end()) return;
  const Child child = found->second;
  const int code = code_of(status);
  if (ending_) {
    const bool expected = !WIFSIGNALED(status) || asked_ || interrupts_ > 1;
    children_.erase(number);
    // Who dies while the others save may take what they have not saved yet with it.
    const bool saves = world_.saver == number || (world_.saver >= 0 && world_.spans_hosts() && is_member(number));
    if (!expected && code_ != 0 && (world_.saver < 0 || saves)) appoint_saver();
    return;
  }
  if (code == 0) return ended_well(number, child);
  if (!WIFSIGNALED(status) && !has_left(status) && child.was_member) {
    // What a process refuses or fails at by itself, others would as well.
    const std::string who = name_of(number);
    children_.erase(number);
    log::error(who + " " + how_it_ended(status) + (children_.empty() ? "." : "; the others are ended."));
    return end(who + " " + how_it_ended(status), code, has_begun());
  }
  lost(number, child, status);
}

void ElasticProcesses::ended_well(std::int64_t number, const Child& child) {
  const bool member = is_member(number), leads = member && rank_of(number) == 0;
  children_.erase(number);
  // Another member was lost after this one had ended its last step: the next generation does those steps again.
  if (!member && child.was_member) return publish();
  finishing_ = true;
  if (leads) end("the run has finished", 0, false);
}

/// A process has ended that the run goes on without.
void ElasticProcesses::lost(std::int64_t number, const Child& child, int status) {
  const bool leaves = has_left(status), member = is_member(number);
  const std::string what = name_of(number) + (leaves ? " has left" : " " + how_it_ended(status));
  children_.erase(number);
  if (!leaves && child.was_member) ++world_.losses;
  if (!member) {
    // Its generation has ended with another process of it, and the next one is told of this loss too.
    if (!leaves && child.was_member) return publish();
    if (leaves || (child.able && WIFSIGNALED(status))) return;
    if (const auto host = hosts_.find(child.host); host != hosts_.end()) ++host->second.failed_starts;
    log::warning("launch: " + what + " before it could join.");
    return;
  }
  finishing_ = false;
  regroup(what);
}

void ElasticProcesses::check_broken() {
  if (ending_ || world_.members.empty()) return;
  for (const auto& [unused, host] : hosts_) {
    if (host.report.broken != world_.generation) continue;
    const std::string& why = host.report.why_broken;
    return regroup("processes lost their connection" + (why.empty() ? "" : " (" + why + ")"));
  }
}

/// A generation without the newest state of the run makes room for one with more hosts.
void ElasticProcesses::check_lacking() {
  if (ending_ || world_.members.empty()) return;
  if (last_step().generation == world_.generation) lacking_.clear();
  const auto lacks = [&](const auto& one) { return one.second.report.lacks == world_.generation; };
  if (std::none_of(hosts_.begin(), hosts_.end(), lacks)) return;
  lacking_.insert(world_.hosts.begin(), world_.hosts.end());
  regroup("the snapshot of step " + grouped(world_.kept) + " was not found");
}

/// Once all members have ended the same step, the next generation begins, or the run ends where all of them leave.
void ElasticProcesses::check_paused() {
  if (ending_ || world_.members.empty()) return;
  std::string leaving;
  bool all_leave = true;
  for (const std::int64_t number : world_.members) {
    const auto child = children_.find(number);
    if (child == children_.end() || child->second.paused != world_.generation) return;
    all_leave = all_leave && child->second.leaves;
    if (child->second.leaves) leaving += (leaving.empty() ? "" : ", ") + name_of(number);
  }
  // Hosts without a member have nothing of the state.
  const std::vector<std::int64_t> left = able();
  const auto has_state = [&](std::int64_t number) { return has_members(children_.at(number).host); };
  if (left.empty() || (all_leave && std::none_of(left.begin(), left.end(), has_state)))
    return end("all processes were asked to end", kInterrupted, false);
  regroup(leaving.empty() ? (world_.wish.empty() ? "all members have paused" : world_.wish) : leaving + " has left");
}

/// Those that can train now, in the order of their ranks: who has one keeps it, and who waits takes the place of one
/// that is gone. The members of a host follow one another.
std::vector<std::int64_t> ElasticProcesses::able() const {
  const auto can = [&](std::int64_t number) {
    const auto child = children_.find(number);
    return child != children_.end() && child->second.able && !child->second.gone && !child->second.leaves &&
           !hosts_.at(child->second.host).leaves;
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
  std::vector<std::int64_t> hosts;
  const auto place = [&](std::int64_t number) {
    return std::find(hosts.begin(), hosts.end(), children_.at(number).host) - hosts.begin();
  };
  for (const std::int64_t number : list) {
    if (place(number) == static_cast<std::ptrdiff_t>(hosts.size())) hosts.push_back(children_.at(number).host);
  }
  std::stable_sort(list.begin(), list.end(), [&](std::int64_t a, std::int64_t b) { return place(a) < place(b); });
  return list;
}

/// The most of so many processes that may train together; 0: none.
std::int64_t ElasticProcesses::size_for(std::size_t able) const {
  std::int64_t size = 0;
  for (const std::int64_t one : plan_.sizes) {
    if (one <= static_cast<std::int64_t>(able) && one <= std::max(wanted(), plan_.sizes.front())) size = one;
  }
  return size;
}

/// Whether the host has no process that can train, and perhaps will have one.
bool ElasticProcesses::may_come(std::int64_t number) const {
  const Host& host = hosts_.at(number);
  if (host.leaves || host.failed_starts > kFailedStarts || host.report.wanted + host.report.spares == 0) return false;
  const std::vector<std::int64_t> ready = able();
  return std::none_of(ready.begin(), ready.end(), [&](std::int64_t one) { return children_.at(one).host == number; });
}

/// Whether there are hosts that may have what the processes that can train have not found.
bool ElasticProcesses::is_elsewhere() const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const auto& one) { return !lacking_.contains(one.first) && may_come(one.first); });
}

/// "1 process is left where at least 2 are needed".
std::string ElasticProcesses::too_few() const {
  if (waits_for_state()) return "the processes that are left have no snapshot as new as that of other hosts";
  const auto left = static_cast<std::int64_t>(able().size());
  return grouped(left) + (left == 1 ? " process is" : " processes are") + " left where at least " +
         grouped(plan_.sizes.front()) + " are needed";
}

void ElasticProcesses::regroup(const std::string& change) {
  if (!is_settled()) {
    changes_ = changes_ && !changes_->empty() ? *changes_ + "; " + change : change;
    return;
  }
  const WorldFolder::Step step = last_step();
  // A generation that did no step has only prolonged what ended the one before.
  if (std::exchange(taken_over_, false)) {
    // take_over() has said what happened.
  } else if (step.generation == world_.generation || world_.generation == 0) {
    world_.since = host_.folder().seconds();
    world_.waited = 0;
    world_.change = change;
  } else if (!change.empty()) {
    world_.change += "; " + change;
  }
  if (step.step > best_step_) {
    without_progress_ = 0;
  } else if (!world_.members.empty()) {  // a generation of nobody is no attempt
    ++without_progress_;
  }
  best_step_ = std::max(best_step_, step.step);
  if (without_progress_ >= kWithoutProgress) {
    return fail("the run has not come farther than step " + grouped(best_step_) + " in " +
                    std::to_string(kWithoutProgress) + " attempts; the last ended because " + change + ".",
                static_cast<int>(ExitCode::kFailure));
  }
  std::vector<std::int64_t> members = able();
  members.resize(waits_for_state() ? 0 : static_cast<std::size_t>(size_for(members.size())));
  world_.kept = step.kept;
  world_.elsewhere = is_elsewhere();
  if (members.empty()) {
    if (!waiting_since_) waiting_since_ = host_.now();
  } else {
    if (waiting_since_) world_.waited += std::chrono::duration<double>(host_.now() - *waiting_since_).count();
    waiting_since_.reset();
    ranks_ = members;
    world_.size = static_cast<std::int64_t>(members.size());
  }
  ++world_.generation;
  if (rendezvous_) world_.term = rendezvous_->membership().record().decided.term;
  world_.members = std::move(members);
  world_.wish.clear();
  for (const std::int64_t number : world_.members) children_[number].was_member = true;
  changed_at_ = host_.now();
  publish();
  warn_of_two_hosts();
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
  if (host_.is_leaving() && hosts_.size() == 1) return end_interrupted();
  replace();
  grow();
  check_waiting();
}

/// Whether some host may start processes at all.
bool ElasticProcesses::may_start() const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [](const auto& one) { return one.second.failed_starts <= kFailedStarts; });
}

void ElasticProcesses::replace() {
  // What the members lack they wait for; a spare can wait until they train again.
  const bool urgent = static_cast<std::int64_t>(world_.members.size()) < wanted();
  const bool trains = last_step().generation == world_.generation;
  if (finishing_ || !(urgent || trains)) return;
  for (auto& [number, host] : hosts_) {
    if (count_on(number) >= host.report.wanted + host.report.spares || host.failed_starts > kFailedStarts) continue;
    if (host.failed_starts < kFailedStarts) return start(number);
    ++host.failed_starts;  // said once
    log::error("launch: " + std::to_string(kFailedStarts) + " processes in a row ended before they could join" +
               (hosts_.size() > 1 ? " on " + host.name + ". No more are started there." : ". No more are started."));
    if (world_.members.empty() && !may_start()) fail(too_few() + ".", static_cast<int>(ExitCode::kFailure));
    return;
  }
}

/// More processes may train together than do: at once where none can, otherwise after a step.
void ElasticProcesses::grow() {
  const std::int64_t size = size_for(able().size());
  const auto members = static_cast<std::int64_t>(world_.members.size());
  if (size <= members || !world_.wish.empty() || finishing_ || waits_for_state()) return;
  const std::string who =
      joined_ && children_.contains(*joined_) ? name_of(*joined_) + " has joined" : "there are more processes";
  if (members == 0) {
    // The first generation waits for all, later ones do not.
    const bool first = world_.generation == 0 || taken_over_;
    if (first && size < wanted() && may_start()) return;
    const bool more_may_come = rendezvous_ && wanted() < plan_.most;
    if (first && more_may_come && host_.now() - host_came_at_ < kForHosts) return;
    return regroup(who);
  }
  const bool trains = last_step().generation == world_.generation;
  if (!trains || host_.now() - changed_at_ < plan_.min_time) return;
  world_.wish = who;
  publish();
}

void ElasticProcesses::check_waiting() {
  if (!waiting_since_ || world_.generation == 0) return;
  if (host_.now() - *waiting_since_ < plan_.wait) return;
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
  if (failed) end_at_ = host_.now() + kToNotice;
  if (code == 0) end_at_ = host_.now() + kToFinish;
  if (save) return appoint_saver();
  publish();
}

/// One that lives, a new one where none does. Of several hosts one each: what is in the memory of a host its own
/// processes alone can read.
void ElasticProcesses::appoint_saver() {
  if (!plan_.saves || !has_begun()) return publish();
  world_.saver = -1;
  if (++savers_ > kFailedStarts) return publish();
  const std::vector<std::int64_t> living = able();
  if (hosts_.size() > 1 && !living.empty()) {
    ++world_.generation;
    world_.members.clear();
    for (const std::int64_t number : living) {
      const auto host = [&](std::int64_t one) { return children_.at(one).host; };
      if (world_.members.empty() || host(world_.members.back()) != host(number)) world_.members.push_back(number);
    }
    world_.saver = world_.members.front();
  } else if (!living.empty()) {
    world_.saver = living.back();
  } else if (plan_.witness) {
    return publish();
  } else {
    world_.saver = world_.next;
    start(own_);
  }
  end_at_ = host_.now() + time_to_write_;
  publish();
  written_ = written();
}

void ElasticProcesses::publish() {
  if (!is_settled() && !ending_) return;  // follow_changes() does
  world_.processes.clear();
  world_.waiting.clear();
  world_.hosts.clear();
  for (const std::int64_t number : world_.members) {
    const auto child = children_.find(number);
    const bool there = child != children_.end();
    world_.processes.push_back(there ? child->second.process : 0);
    world_.hosts.push_back(there ? child->second.host : -1);
  }
  for (const auto& [number, child] : children_) {
    if (!is_member(number)) world_.waiting.push_back(child.process);
  }
  const auto first = world_.hosts.empty() ? hosts_.end() : hosts_.find(world_.hosts.front());
  const bool apart = world_.spans_hosts() && first != hosts_.end();
  world_.address = apart ? first->second.address : "127.0.0.1";
  host_.write(world_);
  tell_hosts();
}

/// Whether processes have written something since the last call: a save may take hours.
bool ElasticProcesses::save_gets_on() {
  if (!written_) return false;
  const std::int64_t now = written();
  if (std::exchange(written_, now) != now) return true;
  log::error("launch: a save was given up: no process has written anything for " +
             short_number(std::chrono::duration<double>(time_to_write_).count()) + " s.");
  written_.reset();
  return false;
}

/// Ends those that are left after a failure: kindly, then not.
void ElasticProcesses::hurry() {
  if (!end_at_ || children_.empty() || host_.now() < *end_at_) return;
  if (save_gets_on()) {
    end_at_ = host_.now() + time_to_write_;
    return;
  }
  send(asked_ ? SIGKILL : SIGTERM);
  asked_ = true;
  end_at_ = host_.now() + kToEnd;
}

void ElasticProcesses::send(int signal) const {
  host_.send(signal);
  if (!ending_) return;  // a host that leaves
  Json message = Json::object();
  message["signal"] = std::int64_t{signal};
  for (const auto& [unused, host] : hosts_) {
    if (host.link) host.link->send(message);
  }
}

}  // namespace capstan
