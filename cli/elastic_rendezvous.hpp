#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/elastic_host.hpp"
#include "cli/elastic_identity.hpp"
#include "cli/elastic_link.hpp"
#include "cli/elastic_secret.hpp"
#include "cli/launcher_address.hpp"

namespace capstan::cli {

/// The host of another launcher, as the one that leads tells of it.
struct KnownHost {
  std::int64_t number = 0;
  std::string name;
  LauncherAddress address;
};

/// Where the launchers of several hosts find together: one of them leads, the others follow it. When it is gone, the
/// one with the lowest number among those that are left leads. [one thread]
class ElasticRendezvous {
 public:
  /// `launched`: what this launcher starts, as a text; all must start the same.
  ElasticRendezvous(std::vector<LauncherAddress> given, RendezvousSecret secret, const std::string& launched,
                    ElasticHost& host);

  /// The launcher that leads, which has welcomed this one; null: this one leads, or has been interrupted, which
  /// is_interrupted() tells. Throws RuntimeFault where nobody answers for long, ConfigError where this launcher starts
  /// something else or has another secret.
  std::unique_ptr<ElasticLink> find_leader();
  bool is_interrupted() const { return interrupted_; }

  /// Of what this launcher starts (launch_hashes()).
  Json hashes() const { return launch_hashes(launched_, secret_.own()); }
  /// The number of this host.
  std::int64_t number() const { return number_; }
  ElasticListener& listener() const { return *listener_; }
  /// All hosts, as the leader has told last.
  void know(std::vector<KnownHost> hosts) { known_ = std::move(hosts); }
  const std::vector<KnownHost>& known() const { return known_; }
  /// The leader with this number is gone. `silently`: it may go on where this host does not reach it.
  void lost_leader(bool silently) {
    leader_lost_ = true;
    silently_ = silently;
  }
  bool leader_was_lost() const { return leader_lost_; }
  bool leader_was_lost_silently() const { return silently_; }
  /// The number of the host that leads, or that did before this one.
  std::int64_t leader() const { return leader_; }

 private:
  enum class Answer { kNone, kWelcome, kElsewhere };
  Answer ask(const LauncherAddress& address, std::unique_ptr<ElasticLink>& link, LauncherAddress& elsewhere);
  std::unique_ptr<ElasticLink> welcomed_by(LauncherAddress address);
  std::unique_ptr<ElasticLink> find_first();
  std::unique_ptr<ElasticLink> find_next();
  bool interrupted_while_waiting();
  Json hello(const std::string& secret) const;
  void use_secret();
  void check_other_secret(const LauncherAddress& address);

  const std::vector<LauncherAddress> given_;
  RendezvousSecret secret_;
  const std::string launched_;
  ElasticHost& host_;
  std::unique_ptr<ElasticListener> listener_;
  std::int64_t number_ = -1, leader_ = -1;
  std::vector<KnownHost> known_;
  bool leader_lost_ = false, silently_ = false, interrupted_ = false;
  bool reached_ = false;  // somebody has answered
  std::string why_;       // nobody has answered
  std::optional<std::chrono::steady_clock::time_point> other_secret_since_;
};

/// The name of this host.
std::string own_host_name();

}  // namespace capstan::cli
