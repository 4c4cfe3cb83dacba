#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "core/elastic/launcher/callers.hpp"
#include "core/elastic/launcher/host.hpp"
#include "core/elastic/launcher/link.hpp"
#include "core/elastic/launcher/rendezvous.hpp"

namespace capstan {

/// A launcher that does what the leading one decides, and tells it what becomes of the processes of its host.
class ElasticFollower {
 public:
  ElasticFollower(ElasticHost& host, ElasticRendezvous& rendezvous, std::unique_ptr<ElasticLink> leader);

  /// Until the run has ended on this host. The exit code; nothing where the leader is gone, and the run goes on.
  std::optional<int> run();

 private:
  void signalled(int number);
  bool has_left();
  void accept(const HostsProposal& proposal);
  void obey(const Json& message);
  void tell();
  void answer_calls();

  ElasticHost& host_;
  ElasticRendezvous& rendezvous_;
  std::unique_ptr<ElasticLink> leader_;
  ElasticCallers callers_;
  std::optional<HostReport> told_;
  std::optional<std::chrono::steady_clock::time_point> leaves_at_;
  int interrupts_ = 0;
};

}  // namespace capstan
