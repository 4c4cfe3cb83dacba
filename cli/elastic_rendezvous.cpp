#include "cli/elastic_rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "cli/elastic_identity.hpp"
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
/// How long a launcher on this host may take to show its secret.
constexpr std::chrono::seconds kToShow{5};

}  // namespace

std::string own_host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

ElasticRendezvous::ElasticRendezvous(std::vector<LauncherAddress> given, RendezvousSecret secret,
                                     const std::string& launched, ElasticHost& host)
    : given_(std::move(given)), secret_(std::move(secret)), launched_(launched), host_(host) {}

std::unique_ptr<ElasticLink> ElasticRendezvous::find_leader() { return number_ < 0 ? find_first() : find_next(); }

/// The first of the given addresses that answers, or this host where the first address is its own.
std::unique_ptr<ElasticLink> ElasticRendezvous::find_first() {
  const auto until = Clock::now() + kToStart;
  const bool own = is_of_this_host(given_.front().host);
  bool told = false;
  do {
    for (const LauncherAddress& address : given_) {
      if (auto link = welcomed_by(address)) return link;
      if (is_interrupted()) return nullptr;
    }
    // Nobody answers at any of them: whoever can listen at the first leads.
    if (own && (listener_ = ElasticListener::at(given_.front(), why_))) {
      number_ = leader_ = 0;
      use_secret();
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

/// Callers of this launcher need it from here on.
void ElasticRendezvous::use_secret() {
  listener_->set_secret(secret_.own());
  secret_.show(host_.folder().path(), listener_->port());
}

/// A launcher on this host shows its secret a moment after it has begun to listen.
void ElasticRendezvous::check_other_secret(const LauncherAddress& address) {
  why_ = "it has another secret";
  if (!other_secret_since_) other_secret_since_ = Clock::now();
  if (number_ >= 0 || (!secret_.is_given() && Clock::now() - *other_secret_since_ < kToShow)) return;
  throw ConfigError("launch: the launcher at " + address.text() + " has another secret. Give " +
                    (secret_.is_given() ? "both the same" : "one to both") +
                    " (--rdzv-secret-file, or CAPSTAN_RDZV_SECRET).");
}

Json ElasticRendezvous::hello(const std::string& secret) const {
  Json hello = Json::object();
  hello["hello"] = launch_hashes(launched_, secret);
  hello["name"] = own_host_name();
  hello["port"] = std::int64_t{listener_->port()};
  hello["host"] = number_;
  hello["generation"] = host_.world().generation;
  hello["report"] = host_.report().json();
  return hello;
}

ElasticRendezvous::Answer ElasticRendezvous::ask(const LauncherAddress& address, std::unique_ptr<ElasticLink>& link,
                                                 LauncherAddress& elsewhere) {
  const std::string secret = secret_.to_call(address.port);
  link = ElasticLink::call(address, secret, kToConnect, why_);
  if (!link) return Answer::kNone;
  reached_ = true;
  if (!listener_) {
    // Where no other host is named, none can call.
    const LauncherAddress& first = given_.front();
    listener_ = ElasticListener::at_some_port({are_loopback(given_) ? first.host : "", first.port});
    listener_->set_secret(secret_.own());
  }
  link->send(hello(secret));
  const auto until = Clock::now() + kToAnswer;
  while (Clock::now() < until && !link->is_closed()) {
    host_.await({link->descriptor()});
    link->keep_alive();
    const auto message = link->receive();
    if (!message) continue;
    try {
      if (const Json* refused = message->find("refused")) throw ConfigError("launch: " + refused->as_string());
      if (const Json* later = message->find("later")) {
        why_ = later->as_string();
        return Answer::kNone;
      }
      if (const Json* leader = message->find("leader")) {
        elsewhere = {leader->at("host").as_string(), static_cast<int>(leader->at("port").as_integer())};
        return Answer::kElsewhere;
      }
      if (const Json* number = message->find("welcome")) {
        number_ = number->as_integer();
        leader_ = message->at("by").as_integer();
        host_.folder().set_clock(message->at("now").as_number() - steady_seconds());
        leader_lost_ = silently_ = false;
        secret_.adopt(secret);
        use_secret();
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
  if (link->has_other_secret()) check_other_secret(address);
  return Answer::kNone;
}

}  // namespace capstan::cli
