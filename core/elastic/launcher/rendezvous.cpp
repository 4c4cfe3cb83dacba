#include "core/elastic/launcher/rendezvous.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/elastic/launcher/identity.hpp"
#include "core/elastic/launcher/search.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long a launcher that is called may take to answer, and to say who leads.
constexpr milliseconds kToConnect{1000}, kToAnswer{5000};
/// How long the launchers of other hosts may take to start.
constexpr std::chrono::minutes kToStart{10};
/// How long a launcher on this host may take to show its secret.
constexpr std::chrono::seconds kToShow{5};
/// After so many seconds a launcher that meets enough hosts leads although it meets one with a lower number.
constexpr double kPatience = 5;

/// A number that no other launcher draws.
std::int64_t random_key() {
  std::uint64_t key = 0;
  while (getrandom(&key, sizeof key, 0) != sizeof key) {
  }
  return static_cast<std::int64_t>(key >> 2);
}

/// As whom the launcher of this host takes part: as a new one, or as the one that a folder was taken over from.
Membership member_as(const ElasticHost& host, double wait) {
  const std::string& votes = host.world().votes;
  const Membership::Times times{kPatience, wait};
  if (votes.empty()) return {HostId{-1, random_key()}, {}, times};
  try {
    const Json text = Json::parse(votes);
    return {checked({text.at("number").as_integer(), text.at("key").as_integer()}), VoteRecord::of(text.at("record")),
            times};
  } catch (const std::exception& error) {
    throw RuntimeFault("launch: '" + host.folder().path().string() +
                       "/world.json', which a launch before this one has left, does not tell which hosts made up its "
                       "run (" +
                       error.what() + "). The folder is removed: launch again to begin anew, or with --resume.");
  }
}

}  // namespace

std::string own_host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

ElasticRendezvous::ElasticRendezvous(std::vector<LauncherAddress> given, RendezvousSecret secret,
                                     const std::string& launched, ElasticHost& host, double wait)
    : given_(std::move(given)),
      secret_(std::move(secret)),
      launched_(launched),
      host_(host),
      membership_(member_as(host, wait)),
      takes_over_(!host.world().votes.empty()) {}

std::unique_ptr<ElasticLink> ElasticRendezvous::find_leader() {
  first_ = false;
  takes_over_ = takes_over_ && host_.is_empty();
  if (membership_.record().last_term() == 0) return find_first();
  listen();
  membership_.search(steady_seconds());
  ElasticSearch search(*this, host_);
  auto leader = search.run();
  interrupted_ = search.is_interrupted();
  met_ = search.take_met();
  if (!leader && !interrupted_) led_before_ = std::exchange(leader_, number()) == number();
  return leader;
}

/// The first of the given addresses that answers, or this host where the first address is its own.
std::unique_ptr<ElasticLink> ElasticRendezvous::find_first() {
  auto until = host_.now() + kToStart;
  const bool own = is_of_this_host(given_.front().host);
  bool told = false;
  do {
    waits_ = false;
    for (const LauncherAddress& address : given_) {
      if (auto link = welcomed_by(address)) return link;
      if (is_interrupted()) return nullptr;
    }
    // Nobody answers at any of them: whoever can listen at the first leads.
    const bool listens = listener_ && listener_->port() == given_.front().port;
    if (own && !waits_ && (listens || (listener_ = ElasticListener::at(given_.front(), why_)))) {
      membership_.take_number(0);
      membership_.begin();
      leader_ = 0;
      first_ = true;
      use_secret();
      return nullptr;
    }
    if (waits_) until = host_.now() + kToStart;  // it ends when its own time is over
    if (!std::exchange(told, true) && !own) {
      log::info("launch: waits for the launcher at " + given_.front().text() + ".");
    }
    if (interrupted_while_waiting()) return nullptr;
  } while (host_.now() < until);
  throw RuntimeFault("launch: nobody answers at " + given_.front().text() + " (" + why_ +
                     "). Start a launcher on that host, and name the same --rdzv on all.");
}

void ElasticRendezvous::remember() {
  Json votes = Json::object();
  votes["number"] = membership_.own().number;
  votes["key"] = membership_.own().key;
  votes["record"] = membership_.record().json();
  host_.remember(votes.dump());
}

void ElasticRendezvous::listen() {
  if (!listener_ && is_of_this_host(given_.front().host)) listener_ = ElasticListener::at(given_.front(), why_);
  if (!listener_) listen_at_some_port();
  use_secret();
}

/// Where no other host is named, none can call.
void ElasticRendezvous::listen_at_some_port() {
  const LauncherAddress& first = given_.front();
  listener_ = ElasticListener::at_some_port({are_loopback(given_) ? first.host : "", first.port});
  listener_->set_secret(secret_.own());
}

void ElasticRendezvous::heed_welcome(const Json& message, const std::string& secret) {
  const std::int64_t number = count_in(message, "welcome"), leader = count_in(message, "by");
  host_.folder().set_clock(message.at("now").as_number() - steady_seconds());
  membership_.take_number(number);
  leader_ = leader;
  secret_.adopt(secret);
  use_secret();
}

void ElasticRendezvous::heed_taken(const Json& numbers) const {
  for (const Json& number : numbers.as_array()) {
    log::warning("launch: process number " + std::to_string(number.as_integer()) +
                 " of this host was given to another process while the hosts were apart: this one is ended.");
    host_.end(number.as_integer());
  }
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
      case Answer::kWaits:
        waits_ = true;
        return nullptr;
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
  if (!other_secret_since_) other_secret_since_ = host_.now();
  const bool may_show = !secret_.is_given() && host_.now() - *other_secret_since_ < kToShow;
  if (may_show || membership_.own().number >= 0) return;
  throw ConfigError("launch: the launcher at " + address.text() + " has another secret. Give " +
                    (secret_.is_given() ? "both the same" : "one to both") +
                    " (--rdzv-secret-file, or CAPSTAN_RDZV_SECRET).");
}

Json ElasticRendezvous::hello(const std::string& secret) const {
  Json hello = Json::object();
  hello["hello"] = launch_hashes(launched_, secret);
  hello["name"] = own_host_name();
  hello["port"] = std::int64_t{listener_->port()};
  hello["host"] = membership_.own().number;
  hello["key"] = membership_.own().key;
  hello["votes"] = membership_.record().json();
  hello["generation"] = host_.world().generation;
  hello["report"] = host_.report().json();
  return hello;
}

ElasticRendezvous::Answer ElasticRendezvous::ask(const LauncherAddress& address, std::unique_ptr<ElasticLink>& link,
                                                 LauncherAddress& elsewhere) {
  const std::string secret = secret_.to_call(address.port);
  link = ElasticLink::call(address, secret, kToConnect, why_);
  if (!link) return Answer::kNone;
  if (!listener_) listen_at_some_port();
  link->send(hello(secret));
  const auto until = host_.now() + kToAnswer;
  while (host_.now() < until && !link->is_closed()) {
    host_.await({link->descriptor()});
    link->keep_alive();
    const auto message = link->receive();
    if (!message) continue;
    try {
      if (const Json* refused = message->find("refused")) throw ConfigError("launch: " + refused->as_string());
      if (const Json* leader = message->find("leader")) {
        elsewhere = {leader->at("host").as_string(), static_cast<int>(count_in(*leader, "port", 65535))};
        return Answer::kElsewhere;
      }
      if (const Json* taken = message->find("taken")) {
        heed_taken(*taken);
        return Answer::kNone;
      }
      if (message->find("searching") != nullptr) return Answer::kWaits;
      if (message->find("welcome") != nullptr) {
        heed_welcome(*message, secret);
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

}  // namespace capstan
