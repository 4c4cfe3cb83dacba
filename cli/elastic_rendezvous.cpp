#include "cli/elastic_rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long a launcher that is called may take to answer, and to say who leads.
constexpr milliseconds kToConnect{1000}, kToAnswer{5000};
/// How long the launchers of other hosts may take to start, and to find a new leader.
constexpr std::chrono::minutes kToStart{10};
constexpr std::chrono::seconds kToElect{30};

}  // namespace

std::string own_host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

ElasticRendezvous::ElasticRendezvous(std::vector<LauncherAddress> given, std::string launched, ElasticHost& host)
    : given_(std::move(given)), launched_(std::move(launched)), host_(host) {}

std::unique_ptr<ElasticLink> ElasticRendezvous::find_leader() { return number_ < 0 ? find_first() : find_next(); }

/// The first of the given addresses that answers, or this host where the first address is its own.
std::unique_ptr<ElasticLink> ElasticRendezvous::find_first() {
  const auto until = Clock::now() + kToStart;
  const bool own = ElasticListener::is_of_this_host(given_.front().host);
  bool told = false;
  do {
    for (const LauncherAddress& address : given_) {
      if (auto link = welcomed_by(address)) return link;
      if (is_interrupted()) return nullptr;
    }
    // Nobody answers at any of them: whoever can listen at the first leads.
    if (own && (listener_ = ElasticListener::at(given_.front(), why_))) {
      number_ = leader_ = 0;
      return nullptr;
    }
    if (!std::exchange(told, true) && !own) {
      log::info("launch: waits for the launcher at " + given_.front().text() + ".");
    }
    if (interrupted_while_waiting()) return nullptr;
  } while (Clock::now() < until);
  throw RuntimeFault("launch: nobody answers at " + given_.front().text() + " (" + why_ +
                     "). Start a launcher on that host, and name the same --rdzv on all.");
}

/// Those that are left ask each other in the order of their numbers: the first leads.
std::unique_ptr<ElasticLink> ElasticRendezvous::find_next() {
  const auto until = Clock::now() + kToElect;
  std::vector<LauncherAddress> before;
  for (const KnownHost& one : known_) {
    if (one.number < number_ && one.number != leader_) before.push_back(one.address);
  }
  while (!before.empty()) {
    reached_ = false;
    if (auto link = welcomed_by(before.front())) return link;
    // Where it answers otherwise, it has not noticed yet.
    if (!reached_) before.erase(before.begin());
    if (interrupted_while_waiting()) return nullptr;
    if (Clock::now() > until) {
      throw RuntimeFault("launch: the launcher that led is gone, and no other took its place within " +
                         std::to_string(kToElect.count()) + " s.");
    }
  }
  return nullptr;
}

bool ElasticRendezvous::interrupted_while_waiting() {
  for (int moment = 0; moment < 5; ++moment) {
    host_.await({});
    while (const int signal = host_.next_signal()) {
      if (signal == SIGINT || signal == SIGTERM) interrupted_ = true;
    }
    if (interrupted_) return true;
  }
  return false;
}

/// Follows where it is sent.
std::unique_ptr<ElasticLink> ElasticRendezvous::welcomed_by(LauncherAddress address) {
  for (int hops = 0; hops < 3; ++hops) {
    std::unique_ptr<ElasticLink> link;
    LauncherAddress elsewhere;
    switch (ask(address, link, elsewhere)) {
      case Answer::kWelcome:
        return link;
      case Answer::kElsewhere:
        address = elsewhere;
        break;
      case Answer::kNone:
        return nullptr;
    }
  }
  return nullptr;
}

Json ElasticRendezvous::hello() const {
  Json hello = Json::object();
  hello["hello"] = launched_;
  hello["name"] = own_host_name();
  hello["port"] = std::int64_t{listener_->port()};
  hello["host"] = number_;
  hello["generation"] = host_.world().generation;
  hello["report"] = host_.report().json();
  return hello;
}

ElasticRendezvous::Answer ElasticRendezvous::ask(const LauncherAddress& address, std::unique_ptr<ElasticLink>& link,
                                                 LauncherAddress& elsewhere) {
  link = ElasticLink::call(address, kToConnect, why_);
  if (!link) return Answer::kNone;
  reached_ = true;
  if (!listener_) listener_ = ElasticListener::at_any_address(given_.front().port);
  link->send(hello());
  const auto until = Clock::now() + kToAnswer;
  while (Clock::now() < until && !link->is_closed()) {
    host_.await({link->descriptor()});
    link->keep_alive();
    const auto message = link->receive();
    if (!message) continue;
    try {
      if (const Json* refused = message->find("refused")) throw ConfigError("launch: " + refused->as_string());
      if (const Json* leader = message->find("leader")) {
        elsewhere = {leader->at("host").as_string(), static_cast<int>(leader->at("port").as_integer())};
        return Answer::kElsewhere;
      }
      if (const Json* number = message->find("welcome")) {
        number_ = number->as_integer();
        leader_ = message->at("by").as_integer();
        host_.folder().set_clock(message->at("now").as_number() - steady_seconds());
        leader_lost_ = silently_ = false;
        return Answer::kWelcome;
      }
    } catch (const ConfigError&) {
      throw;
    } catch (const std::exception&) {
      // Some other program answers.
    }
    break;
  }
  why_ = "what listens there is not an elastic launch";
  return Answer::kNone;
}

}  // namespace capstan::cli
