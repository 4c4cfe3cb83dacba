#include "core/elastic/launcher/follower.hpp"

#include <csignal>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

/// How long the launcher that leads may take to decide that a host has left.
constexpr std::chrono::seconds kToLeave{5};

}  // namespace

ElasticFollower::ElasticFollower(ElasticHost& host, ElasticRendezvous& rendezvous, std::unique_ptr<ElasticLink> leader)
    : host_(host), rendezvous_(rendezvous), leader_(std::move(leader)) {}

std::optional<int> ElasticFollower::run() {
  while (true) {
    host_.await({leader_->descriptor(), rendezvous_.listener().descriptor()});
    while (const int number = host_.next_signal()) signalled(number);
    while (const auto message = leader_->receive()) obey(*message);
    answer_calls();
    tell();
    leader_->keep_alive();
    const bool ends = !host_.world().end.empty();
    if (host_.is_empty() && ends) return host_.world().end_code;
    if (host_.is_empty() && host_.is_leaving() && has_left()) return static_cast<int>(ExitCode::kInterrupted);
    if (!ends && (leader_->is_closed() || leader_->is_silent())) return std::nullopt;
  }
}

/// The others decide without this host from then on, and count its voice for that.
bool ElasticFollower::has_left() {
  if (!leaves_at_) {
    leaves_at_ = host_.now() + kToLeave;
    Json message = Json::object();
    message["leaves"] = true;
    leader_->send(message);
  }
  const Membership& membership = rendezvous_.membership();
  return !membership.record().names(membership.own()) || leader_->is_closed() || host_.now() > *leaves_at_;
}

void ElasticFollower::signalled(int number) {
  if (number == SIGUSR1) host_.want_one_more();
  if (number != SIGINT && number != SIGTERM) return;
  if (++interrupts_ > 1) return host_.send(SIGKILL);
  log::info("launch: this host leaves the run after the step under way.");
  host_.leave();
}

void ElasticFollower::obey(const Json& message) {
  try {
    if (message.find("start") != nullptr && !host_.is_leaving()) host_.start(count_in(message, "start"));
    if (const Json* signal = message.find("signal")) {
      // A launcher that leads ends processes, and nothing else.
      host_.send(signal->as_integer() == SIGKILL ? SIGKILL : SIGTERM);
    }
    if (const Json* proposal = message.find("propose")) accept(HostsProposal::of(*proposal));
    if (const Json* term = message.find("decided")) {
      rendezvous_.membership().learn(term->as_integer());
      rendezvous_.remember();
    }
    if (const Json* world = message.find("world")) host_.write(World::of(*world));
    if (const Json* hosts = message.find("hosts")) {
      std::vector<KnownHost> known;
      for (const Json& one : hosts->as_array()) {
        known.push_back({one.at("number").as_integer(),
                         one.at("name").as_string(),
                         {one.at("host").as_string(), static_cast<int>(count_in(one, "port", 65535))}});
      }
      rendezvous_.know(std::move(known));
    }
    if (const Json* meeting = message.find("meeting")) {
      host_.show_meeting(meeting->as_integer(),
                         {static_cast<int>(count_in(message, "port", 65535)), message.at("secret").as_string()});
    }
    if (const Json* step = message.find("step")) {
      host_.folder().tell_step({message.at("generation").as_integer(), step->as_integer(), message.at("at").as_number(),
                                message.at("kept").as_integer()});
    }
  } catch (const RuntimeFault&) {
    throw;  // of this host: there is no process to start, or no room
  } catch (const std::exception& error) {
    log::warning("launch: the launcher that leads, at " + leader_->peer_address() +
                 ", has sent what is not believed (" + error.what() + "): its connection is closed.");
    leader_->close();
  }
}

/// The record is written to the folder of this host before the leader hears of it.
void ElasticFollower::accept(const HostsProposal& proposal) {
  if (!rendezvous_.membership().accept(proposal)) return leader_->close();
  rendezvous_.remember();
  Json message = Json::object();
  message["accepted"] = proposal.decision.term;
  leader_->send(message);
}

void ElasticFollower::tell() {
  Json ended = Json::array();
  for (const EndedProcess& one : host_.collect()) {
    Json process = Json::object();
    process["number"] = one.number;
    process["status"] = std::int64_t{one.status};
    ended.push_back(std::move(process));
  }
  HostReport report = host_.report();
  if (ended.size() == 0 && told_ && *told_ == report) return;
  // In one message: what has ended and how many are wanted from here on belong together.
  Json message = Json::object();
  message["ended"] = std::move(ended);
  message["report"] = report.json();
  leader_->send(message);
  told_ = std::move(report);
}

/// Whoever calls this launcher is to call the leading one.
void ElasticFollower::answer_calls() {
  callers_.hear(rendezvous_.listener(), [&](std::unique_ptr<ElasticLink>& caller, const Json&) {
    for (const KnownHost& one : rendezvous_.known()) {
      if (one.number != rendezvous_.leader()) continue;
      Json message = Json::object(), leader = Json::object();
      leader["host"] = one.address.host;
      leader["port"] = std::int64_t{one.address.port};
      message["leader"] = std::move(leader);
      caller->send(message);
    }
  });
}

}  // namespace capstan
