#include "core/elastic/launcher/search.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/elastic/launcher/identity.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;

/// How long a launcher that is called may take to take the call, and how often it is called.
constexpr milliseconds kToTakeCall{300}, kCallAgain{1000};
/// How long processes train on while another launcher may still be found that leads.
constexpr milliseconds kToHalt{2000};
/// How long a launcher that has taken a call may take to say which host it is of, before this one leads without it.
constexpr milliseconds kToSay{500};
/// How long processes may take to end where the run ends without this host.
constexpr milliseconds kToEndAlone{3000};

}  // namespace

ElasticSearch::ElasticSearch(ElasticRendezvous& rendezvous, ElasticHost& host)
    : rendezvous_(rendezvous), host_(host), membership_(rendezvous.membership()) {
  find_places();
}

/// The leader's address first: the leader may live, with the link to it lost.
void ElasticSearch::find_places() {
  for (const KnownHost& one : rendezvous_.known()) {
    if (one.number == rendezvous_.leader()) add_place(one.address);
  }
  for (const KnownHost& one : rendezvous_.known()) add_place(one.address);
  for (const LauncherAddress& one : rendezvous_.given()) add_place(one);
}

void ElasticSearch::add_place(const LauncherAddress& address) {
  const auto same = [&](const Place& one) { return one.address == address; };
  const bool own = address.port == rendezvous_.listener().port() && is_of_this_host(address.host);
  if (address.port > 0 && !own && std::none_of(places_.begin(), places_.end(), same)) places_.push_back({address, {}});
}

std::unique_ptr<ElasticLink> ElasticSearch::run() {
  const auto begun = host_.now();
  bool halted = false;
  while (true) {
    std::vector<int> descriptors{rendezvous_.listener().descriptor()};
    for (const Link& one : links_) descriptors.push_back(one.link->descriptor());
    host_.await(std::move(descriptors));
    take_signals();
    if (interrupted_) {
      end_alone();
      return nullptr;
    }
    host_.collect();
    call();
    hear_callers();
    for (Link& one : links_) {
      if (hear(one)) return std::move(one.link);
    }
    for (Link& one : links_) {
      one.link->keep_alive();
      if (one.link->is_closed() || one.link->is_silent()) drop(one);
    }
    std::erase_if(links_, [](const Link& one) { return !one.link; });
    if (membership_.is_to_lead(steady_seconds()) && !awaits_answer()) {
      lead();
      return nullptr;
    }
    if (!halted && host_.now() - begun > kToHalt) {
      halted = true;
      if (host_.is_leaving()) {  // the others have gone on without it
        interrupted_ = true;
        continue;
      }
      host_.halt(what_is_met());
      log::warning("launch: " + what_is_met() + ", which is not a majority: this host trains nothing and waits " +
                   short_number(membership_.wait()) + " s for the others (capstan.elastic.wait).");
    }
    if (membership_.is_over(steady_seconds())) {
      end_alone();
      throw RuntimeFault("launch: " + what_is_met() + ", and no others came back within " +
                         short_number(membership_.wait()) +
                         " s (capstan.elastic.wait). The run may go on without this host, which ends here and saves "
                         "nothing, so that there are not two runs.");
    }
  }
}

std::string ElasticSearch::what_is_met() const {
  const auto& hosts = membership_.hosts();
  const std::set<HostId> met = membership_.met();
  const auto others = std::count_if(hosts.begin(), hosts.end(), [&](const HostId& one) { return met.contains(one); });
  return "of the " + grouped(static_cast<std::int64_t>(hosts.size())) + " hosts of the run this one reaches " +
         grouped(others) + (others == 1 ? " other" : " others");
}

void ElasticSearch::take_signals() {
  while (const int signal = host_.next_signal()) {
    if (signal == SIGINT || signal == SIGTERM) interrupted_ = true;
  }
}

bool ElasticSearch::is_called(const LauncherAddress& address) const {
  const auto known = std::find_if(rendezvous_.known().begin(), rendezvous_.known().end(),
                                  [&](const KnownHost& one) { return one.address == address; });
  return std::any_of(links_.begin(), links_.end(), [&](const Link& one) {
    return one.link && (one.called == address ||
                        (one.host && known != rendezvous_.known().end() && one.host->number == known->number));
  });
}

/// Whoever leads calls nobody any more: a launcher that does not know where this one is would not find it.
bool ElasticSearch::awaits_answer() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const Link& one) { return one.called.port > 0 && !one.host && one.link->age() < kToSay; });
}

void ElasticSearch::call() {
  for (Place& one : places_) {
    if (is_called(one.address) || (one.tried && host_.now() - *one.tried < kCallAgain)) continue;
    std::string why;
    const std::string secret = rendezvous_.secret_to_call(one.address.port);
    auto link = ElasticLink::call(one.address, secret, kToTakeCall, why);
    one.tried = host_.now();
    if (!link) continue;
    link->send(rendezvous_.hello(secret));
    Link& called = links_.emplace_back();
    called.link = std::move(link);
    called.secret = secret;
    called.called = one.address;
  }
}

void ElasticSearch::hear_callers() {
  callers_.hear(rendezvous_.listener(), [&](std::unique_ptr<ElasticLink>& caller, const Json& message) {
    Json reply = Json::object();
    if (message.find("status") != nullptr) {
      reply["text"] = "launch " + own_host_name() + ": " + what_is_met() + ", and waits for the others\n";
      return caller->send(reply);
    }
    if (message.find("hello") == nullptr || caller->is_closed()) return caller->close();
    Link& one = links_.emplace_back();
    one.secret = rendezvous_.own_secret();
    reply["searching"] = rendezvous_.hello(one.secret);
    caller->send(reply);
    one.link = std::move(caller);
    try {
      meet(one, message);
    } catch (const std::exception&) {
      one.link->close();  // some other program calls
    }
  });
}

bool ElasticSearch::hear(Link& one) {
  while (one.link) {
    const auto message = one.link->receive();
    if (!message) return false;
    try {
      if (const Json* refused = message->find("refused")) {
        if (!host_.is_leaving()) throw ConfigError("launch: " + refused->as_string());
        interrupted_ = true;
        return false;
      }
      if (const Json* taken = message->find("taken")) {
        rendezvous_.heed_taken(*taken);
        one.link->close();
      } else if (const Json* leader = message->find("leader")) {
        add_place({leader->at("host").as_string(), static_cast<int>(count_in(*leader, "port", 65535))});
        one.link->close();
      } else if (const Json* hello = message->find("searching")) {
        meet(one, *hello);
      } else if (message->find("welcome") != nullptr) {
        rendezvous_.heed_welcome(*message, one.secret);
        return true;
      }
    } catch (const ConfigError&) {
      throw;
    } catch (const std::exception&) {
      one.link->close();  // some other program speaks
    }
  }
  return false;
}

/// A launcher that is new to the run waits until one leads. Of two links to one host both ends keep the one that the
/// lower number has called.
void ElasticSearch::meet(Link& one, const Json& hello) {
  const HostId host = host_id_of(hello);
  const VoteRecord record = VoteRecord::of(hello.at("votes"));
  if (host.key == membership_.own().key) return one.link->close();
  if (host.number < 0 || record.last_term() == 0) return;
  const bool kept = (one.called.port > 0) == (membership_.own() < host);
  for (Link& other : links_) {
    if (&other == &one || other.host != host) continue;
    if (!kept) return one.link->close();
    other.host.reset();
    other.link->close();
  }
  one.host = host;
  one.hello = hello;
  membership_.meet(host, record);
}

void ElasticSearch::drop(Link& one) {
  if (one.host) membership_.lose(*one.host);
  one.link.reset();
}

void ElasticSearch::lead() {
  membership_.lead();
  for (Link& one : links_) {
    if (!one.host) continue;
    MetLauncher& met = met_.emplace_back();
    met.link = std::move(one.link);
    met.hello = std::move(one.hello);
    met.secret = one.secret;
  }
}

/// Processes that are asked kindly would save, and the run may go on elsewhere.
void ElasticSearch::end_alone() {
  host_.send(SIGKILL);
  const auto until = host_.now() + kToEndAlone;
  while (!host_.is_empty() && host_.now() < until) {
    host_.await({});
    host_.collect();
  }
}

}  // namespace capstan
