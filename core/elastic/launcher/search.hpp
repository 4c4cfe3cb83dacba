#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/elastic/launcher/callers.hpp"
#include "core/elastic/launcher/host.hpp"
#include "core/elastic/launcher/link.hpp"
#include "core/elastic/launcher/rendezvous.hpp"

namespace capstan {

/// How a launcher that has lost the one that led, or that led and has lost the majority of the hosts, finds the others:
/// it calls all of them, the leader's address first, and answers those that call. Until a launcher leads, no process of
/// this host trains. [one thread]
class ElasticSearch {
 public:
  ElasticSearch(ElasticRendezvous& rendezvous, ElasticHost& host);

  /// The launcher that leads, which has welcomed this one; null: this one leads those of take_met(), or has been
  /// interrupted. Throws RuntimeFault where a majority of the hosts does not come back in time.
  std::unique_ptr<ElasticLink> run();
  bool is_interrupted() const { return interrupted_; }
  std::vector<MetLauncher> take_met() { return std::move(met_); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Link {
    std::unique_ptr<ElasticLink> link;
    LauncherAddress called;      // without a port: the other launcher has called
    std::string secret;          // by which both prove themselves
    std::optional<HostId> host;  // that it leads to, once it has said so
    Json hello;
  };
  struct Place {
    LauncherAddress address;
    std::optional<Clock::time_point> tried;
  };

  void find_places();
  /// Unless it is known, or this launcher's own.
  void add_place(const LauncherAddress& address);
  void call();
  bool awaits_answer() const;
  void hear_callers();
  /// Whether the launcher that leads speaks there.
  bool hear(Link& one);
  void meet(Link& one, const Json& hello);
  void drop(Link& one);
  bool is_called(const LauncherAddress& address) const;
  void lead();
  void take_signals();
  void end_alone();
  std::string what_is_met() const;

  ElasticRendezvous& rendezvous_;
  ElasticHost& host_;
  Membership& membership_;
  std::vector<Place> places_;
  std::vector<Link> links_;
  ElasticCallers callers_;
  std::vector<MetLauncher> met_;
  bool interrupted_ = false;
};

}  // namespace capstan
