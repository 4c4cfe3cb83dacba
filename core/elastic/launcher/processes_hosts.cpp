// The part of ElasticProcesses that has to do with the launchers of other hosts.

#include <algorithm>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/comm/port_file.hpp"
#include "core/elastic/launcher/identity.hpp"
#include "core/elastic/launcher/processes.hpp"
#include "core/elastic/launcher/status.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

/// The longest name of a host that is shown.
constexpr std::size_t kLongestName = 64;

/// What a caller calls its host, fit for a terminal and a log.
std::string shown(std::string name) {
  if (name.size() > kLongestName) name.resize(kLongestName);
  for (char& letter : name) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 127) letter = '?';
  }
  return name;
}

}  // namespace

/// The members train on, as they were told; members that went with their host are found out once the hosts have agreed.
void ElasticProcesses::succeed() {
  succeeds_ = changed_hosts_ = true;
  world_ = host_.world();
  ranks_ = world_.members;
  best_step_ = last_step().step;
  if (!world_.members.empty()) waiting_since_.reset();
  for (const KnownHost& one : rendezvous_->known()) {
    if (one.number == own_) hosts_.at(own_).address = one.address.host;
  }
  for (const HostReport::Process& one : hosts_.at(own_).report.processes) {
    children_[one.number] = {.host = own_, .was_member = is_member(one.number)};
  }
  take(own_, host_.report());
  if (!rendezvous_->has_led_before()) {
    const LauncherAddress here{hosts_.at(own_).address, rendezvous_->listener().port()};
    log::warning("launch: the launcher that led the run is gone. This one, on " + hosts_.at(own_).name +
                 ", leads from here on; hosts join with --rdzv " + here.text() + ".");
  }
}

void ElasticProcesses::lead_those_met() {
  changed_hosts_ = true;
  for (MetLauncher& one : rendezvous_->take_met()) {
    if (!one.link->is_closed()) welcome(one.link, one.hello, one.secret);
  }
  for (const HostId& met : rendezvous_->membership().met()) {
    const auto host = hosts_.find(met.number);
    if (host == hosts_.end() || host->second.id != met) rendezvous_->membership().lose(met);
  }
  agree();
}

/// Members that went with a host that was lost are known by now: what is left of the generation trains on, or another
/// one begins.
void ElasticProcesses::follow_changes() {
  if (std::exchange(succeeds_, false)) {
    std::string gone;
    for (const std::int64_t number : world_.members) {
      if (children_.contains(number)) continue;
      gone += (gone.empty() ? "" : ", ") + name_of(number);
      ++world_.losses;
    }
    if (!gone.empty()) changes_ = gone + " went with a host that was lost" + (changes_ ? "; " + *changes_ : "");
  }
  const auto why = std::exchange(changes_, std::nullopt);
  why && !ending_ ? regroup(*why) : publish();
  warn_of_two_hosts();
}

void ElasticProcesses::agree() {
  if (!std::exchange(changed_hosts_, false) || outnumbered_) return;
  Membership& membership = rendezvous_->membership();
  if (!membership.may_go_on()) {
    outnumbered_ = !ending_;
    return;
  }
  std::set<HostId> leaving;
  for (const auto& [unused, host] : hosts_) {
    if (host.leaves) leaving.insert(host.id);
  }
  const auto proposals = membership.propose(leaving);
  rendezvous_->remember();
  for (const auto& [unused, host] : hosts_) {
    const auto proposal = proposals.find(host.id);
    if (!host.link || proposal == proposals.end()) continue;
    Json message = Json::object();
    message["propose"] = proposal->second.json();
    host.link->send(message);
  }
  if (membership.is_settled()) settle();
}

void ElasticProcesses::settle() {
  rendezvous_->remember();
  Json message = Json::object();
  message["decided"] = rendezvous_->membership().record().decided.term;
  for (const auto& [unused, host] : hosts_) {
    if (host.link) host.link->send(message);
  }
  if (hosts_.at(own_).leaves) return;
  follow_changes();
}

/// Whether the others have decided to go on without this host, which has asked for it.
bool ElasticProcesses::leave_others() {
  Host& own = hosts_.at(own_);
  if (!std::exchange(own.leaves, true)) {
    changed_hosts_ = true;
    agree();
  }
  return is_settled();
}

void ElasticProcesses::warn_of_two_hosts() {
  if (rendezvous_ == nullptr || world_.generation == 0) return;
  const bool were_two = std::exchange(are_two_, hosts_.size() == 2);
  if (were_two || !are_two_) return;
  const Host &first = hosts_.begin()->second, &second = hosts_.rbegin()->second;
  log::warning(
      "launch: with two hosts the run goes on when host " + std::to_string(hosts_.rbegin()->first) + " (" +
      second.name + ") is lost, and waits when host " + std::to_string(hosts_.begin()->first) + " (" + first.name +
      ") is: a host that is lost and a network that is cut look alike. A third launcher is enough to tell them "
      "apart: the same command with -n 0 on any machine, which needs no GPU, data or shared folder.");
}

void ElasticProcesses::hear_hosts() {
  callers_.hear(rendezvous_->listener(),
                [&](std::unique_ptr<ElasticLink>& caller, const Json& message) { answer(caller, message); });
  std::vector<std::pair<std::int64_t, bool>> gone;
  for (auto& [number, host] : hosts_) {
    if (!host.link) continue;
    while (const auto message = host.link->receive()) hear(number, *message);
    host.link->keep_alive();
    if (host.link->is_closed() || host.link->is_silent()) gone.emplace_back(number, !host.link->is_closed());
  }
  for (const auto& [number, silently] : gone) lose_host(number, silently);
  agree();
  if (outnumbered_) return;
  const HostReport* meeting = nullptr;
  for (const auto& [unused, host] : hosts_) {
    if (host.report.meeting == world_.generation && world_.generation > shown_) meeting = &host.report;
  }
  if (meeting != nullptr) {
    shown_ = world_.generation;
    host_.show_meeting(shown_, meeting->place);
    Json message = Json::object();
    message["meeting"] = shown_;
    message["port"] = std::int64_t{meeting->place.port};
    message["secret"] = meeting->place.secret;
    for (const auto& [number, host] : hosts_) {
      if (host.link && has_members(number)) host.link->send(message);
    }
  }
  const WorldFolder::Step step = last_step();
  if (step.at - told_step_.at < 1 && step.generation == told_step_.generation) return;
  told_step_ = step;
  host_.folder().tell_step(step);
  Json message = Json::object();
  message["step"] = step.step;
  message["generation"] = step.generation;
  message["at"] = step.at;
  message["kept"] = step.kept;
  for (const auto& [number, host] : hosts_) {
    const bool knows = !world_.hosts.empty() && world_.hosts.front() == number;
    if (host.link && !knows) host.link->send(message);
  }
}

void ElasticProcesses::check_is_of(std::int64_t host, std::int64_t number) const {
  const auto child = children_.find(number);
  if (child == children_.end() || child->second.host == host) return;
  throw std::invalid_argument("process number " + std::to_string(number) + " is not of that host");
}

bool ElasticProcesses::has_members(std::int64_t host) const {
  return std::find(world_.hosts.begin(), world_.hosts.end(), host) != world_.hosts.end();
}

void ElasticProcesses::keep_own_facts(std::int64_t host, HostReport& report) const {
  const bool has_first = !world_.hosts.empty() && world_.hosts.front() == host;
  if (!has_first) report.meeting = 0;
  if (!has_members(host)) report.broken = report.lacks = 0;
  // Hosts repeat the step that they were told last; none knows a generation that is not decided yet.
  const std::int64_t told = host_.folder().last_step().step;
  const bool is_current = report.step.generation == world_.generation;
  if (report.step.generation > world_.generation ||
      (is_current && !world_.hosts.empty() && !has_first && report.step.step > told)) {
    report.step = {};
  }
}

void ElasticProcesses::hear(std::int64_t host, const Json& message) {
  try {
    std::vector<std::pair<std::int64_t, int>> all;
    if (const Json* list = message.find("ended")) {
      for (const Json& one : list->as_array()) {
        all.emplace_back(one.at("number").as_integer(), static_cast<int>(one.at("status").as_integer()));
      }
    }
    std::optional<HostReport> report;
    if (const Json* found = message.find("report")) report = HostReport::of(*found);
    for (const auto& [number, unused] : all) check_is_of(host, number);
    if (report) {
      for (const HostReport::Process& one : report->processes) check_is_of(host, one.number);
      keep_own_facts(host, *report);
    }
    for (const auto& [number, unused] : all) {
      if (const auto child = children_.find(number); child != children_.end()) child->second.gone = true;
    }
    if (message.find("leaves") != nullptr) hosts_.at(host).leaves = changed_hosts_ = true;
    if (const Json* term = message.find("accepted")) {
      if (rendezvous_->membership().count(hosts_.at(host).id, term->as_integer()) && !changed_hosts_) settle();
    }
    if (report) take(host, std::move(*report));
    for (const auto& [number, status] : all) ended(number, status);
  } catch (const ConfigError&) {
    throw;
  } catch (const RuntimeFault&) {
    throw;
  } catch (const std::exception& error) {
    log::warning("launch: the launcher on " + hosts_.at(host).name + " has sent what is not believed (" + error.what() +
                 "): its connection is closed.");
    hosts_.at(host).link->close();
  }
}

void ElasticProcesses::answer(std::unique_ptr<ElasticLink>& caller, const Json& message) {
  Json reply = Json::object();
  try {
    if (message.find("hello") != nullptr) return welcome(caller, message, rendezvous_->own_secret());
    if (message.find("status") == nullptr) return caller->close();
    reply["text"] = status();
    caller->send(reply);
  } catch (const std::exception&) {
    if (caller) caller->close();
  }
}

/// Why a caller may not join, now or ever; empty: it may.
std::string ElasticProcesses::refusal(const Json& hello, const std::string& secret) const {
  const std::string kinds = differing_kinds(rendezvous_->hashes(secret), hello.at("hello"));
  if (ending_) return "the run ends, because " + world_.end + ".";
  if (kinds.empty()) return "";
  return "this launch is not the one that runs: " + kinds +
         ". Use the same program, configuration and arguments on every host.";
}

void ElasticProcesses::welcome(std::unique_ptr<ElasticLink>& caller, const Json& hello, const std::string& secret) {
  if (caller->is_closed()) return;  // it has called while this host stood still
  Host host;
  host.name = shown(hello.at("name").as_string());
  host.address = caller->peer_address();
  host.port = static_cast<int>(count_in(hello, "port", 65535));
  host.report = HostReport::of(hello.at("report"));
  const HostId called = host_id_of(hello);
  const VoteRecord votes = VoteRecord::of(hello.at("votes"));
  const std::int64_t left = count_in(hello, "generation");
  if (const std::string why = refusal(hello, secret); !why.empty()) {
    Json refused = Json::object();
    refused["refused"] = why;
    log::warning("launch: " + host.name + " (" + host.address + ") may not join: " + why);
    return caller->send(refused);
  }
  std::int64_t number = called.number;
  const auto before = hosts_.find(number);
  if (before != hosts_.end() && before->second.id == called) {
    lose_host(number, false);  // it has lost the link before this launcher has
  } else if (number < 0 || before != hosts_.end()) {
    // Numbers of hosts that are gone are not given again: whoever still has one means another host.
    number = hosts_.rbegin()->first + 1;
    for (const KnownHost& one : rendezvous_->known()) number = std::max(number, one.number + 1);
    for (const HostId& one : rendezvous_->membership().hosts()) number = std::max(number, one.number + 1);
  }
  if (!check_numbers(caller, host.report, number)) return;
  host.id = {number, called.key};
  if (!rendezvous_->membership().meet(host.id, votes)) {
    outnumbered_ = true;  // it has gone on with others, who know this launcher
    return;
  }
  changed_hosts_ = true;
  Json welcome = Json::object();
  welcome["welcome"] = number;
  welcome["by"] = own_;
  welcome["now"] = host_.folder().seconds();
  caller->send(welcome);
  hosts_.at(own_).address = caller->own_address();
  host.link = std::move(caller);
  for (const HostReport::Process& one : host.report.processes) {
    children_[one.number] = {.host = number, .was_member = is_member(one.number)};
    world_.next = std::max(world_.next, one.number + 1);
  }
  const HostReport report = host.report;
  hosts_[number] = std::move(host);
  if (left > world_.generation) {
    // Generations count on from there. Either that host has what a launch before this one has left, and this one has
    // not, or its processes have been told to wait, so that they are no members any more.
    if (world_.generation == 0) {
      taken_over_ = true;
      world_.change = "all processes and their launcher were lost";
      world_.since = host_.folder().seconds();
    } else {
      changes_ = hosts_.at(number).name + " was cut off";
    }
    world_.generation = left;
  }
  host_came_at_ = host_.now();
  take(number, report);
  log::info("launch: " + hosts_.at(number).name + " (" + hosts_.at(number).address + ") has joined with " +
            grouped(report.wanted) + (report.wanted == 1 ? " process." : " processes."));
  publish();
}

/// Whether no process of the host has the number of another one. Where two sides of a network have both started
/// processes, the host ends its own, and calls again.
bool ElasticProcesses::check_numbers(const std::unique_ptr<ElasticLink>& caller, const HostReport& report,
                                     std::int64_t host) const {
  Json taken = Json::array();
  for (const HostReport::Process& one : report.processes) {
    const auto child = children_.find(one.number);
    if (child != children_.end() && child->second.host != host) taken.push_back(one.number);
  }
  if (taken.size() == 0) return true;
  Json message = Json::object();
  message["taken"] = std::move(taken);
  caller->send(message);
  return false;
}

void ElasticProcesses::lose_host(std::int64_t number, bool silently) {
  const Host host = std::move(hosts_.at(number));
  hosts_.erase(number);
  rendezvous_->membership().lose(host.id);
  changed_hosts_ = true;
  const std::int64_t losses = world_.losses;
  std::string ranks;
  bool member = false;
  for (auto child = children_.begin(); child != children_.end();) {
    if (child->second.host != number) {
      ++child;
      continue;
    }
    if (is_member(child->first)) {
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank_of(child->first));
      member = true;
    }
    if (child->second.was_member) ++world_.losses;
    child = children_.erase(child);
  }
  const std::string what = host.name + " is gone" + (silently ? ": nothing was heard of it for 5 s" : "") +
                           (member ? " (rank " + ranks + ")" : "");
  if (ending_) return;
  if (!member) {
    log::info("launch: " + what + ".");
    if (world_.losses > losses) publish();
    return;
  }
  finishing_ = false;
  regroup(what);
}

Json ElasticProcesses::hosts_json() const {
  Json list = Json::array();
  for (const auto& [number, host] : hosts_) {
    Json one = Json::object();
    one["number"] = number;
    one["name"] = host.name;
    one["host"] = host.address;
    one["port"] = std::int64_t{number == own_ ? rendezvous_->listener().port() : host.port};
    list.push_back(std::move(one));
  }
  return list;
}

void ElasticProcesses::tell_hosts() {
  if (!rendezvous_) return;
  Json message = Json::object();
  message["world"] = world_.json();
  message["hosts"] = hosts_json();
  std::vector<KnownHost> known;
  for (const auto& [number, host] : hosts_) {
    known.push_back({number, host.name, {host.address, number == own_ ? rendezvous_->listener().port() : host.port}});
    if (host.link) host.link->send(message);
  }
  if (!succeeds_) rendezvous_->know(std::move(known));
}

std::string ElasticProcesses::status() const {
  std::vector<ShownProcess> processes;
  for (const auto& [number, child] : children_) {
    const auto host = hosts_.find(child.host);
    processes.push_back({is_member(number) ? rank_of(number) : -1, child.process,
                         host == hosts_.end() ? "" : host->second.name + " (" + host->second.address + ")"});
  }
  const auto hosts = static_cast<std::int64_t>(rendezvous_->membership().hosts().size());
  return elastic_status(own_host_name() + ", host " + std::to_string(own_), world_, last_step(),
                        host_.folder().seconds(), std::move(processes)) +
         "  " + grouped(hosts) + (hosts == 1 ? " host\n" : " hosts\n");
}

}  // namespace capstan
