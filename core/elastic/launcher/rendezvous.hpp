#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/elastic/launcher/address.hpp"
#include "core/elastic/launcher/host.hpp"
#include "core/elastic/launcher/identity.hpp"
#include "core/elastic/launcher/link.hpp"
#include "core/elastic/launcher/membership.hpp"
#include "core/elastic/launcher/secret.hpp"

namespace capstan {

/// The host of another launcher, as the one that leads tells of it.
struct KnownHost {
  std::int64_t number = 0;
  std::string name;
  LauncherAddress address;
};

/// A launcher that this one meets while both look for one that leads.
struct MetLauncher {
  std::unique_ptr<ElasticLink> link;
  Json hello;
  std::string secret;  // by which both have proven themselves
};

/// Where the launchers of several hosts find together: one of them leads, the others follow it. Membership decides
/// which. [one thread]
class ElasticRendezvous {
 public:
  /// `launched`: what this launcher starts, as a text; all must start the same. `wait`: seconds for hosts that are
  /// lost.
  ElasticRendezvous(std::vector<LauncherAddress> given, RendezvousSecret secret, const std::string& launched,
                    ElasticHost& host, double wait);

  /// The launcher that leads, which has welcomed this one; null: this one leads, or has been interrupted, which
  /// is_interrupted() tells. Throws RuntimeFault where nobody answers for long, or where a majority of the hosts does
  /// not come back in time, ConfigError where this launcher starts something else or has another secret.
  std::unique_ptr<ElasticLink> find_leader();
  bool is_interrupted() const { return interrupted_; }
  /// The launchers that this one leads from here on, after another one has led.
  std::vector<MetLauncher> take_met() { return std::move(met_); }

  Membership& membership() { return membership_; }
  const Membership& membership() const { return membership_; }
  /// Keeps what this launcher has accepted where a launcher that takes over finds it.
  void remember();

  /// Of what this launcher starts (launch_hashes()), for a launcher that has this secret.
  Json hashes(const std::string& secret) const { return launch_hashes(launched_, secret); }
  /// The number of this host.
  std::int64_t number() const { return membership_.own().number; }
  ElasticListener& listener() const { return *listener_; }
  /// All hosts, as the leader has told last.
  void know(std::vector<KnownHost> hosts) { known_ = std::move(hosts); }
  const std::vector<KnownHost>& known() const { return known_; }
  /// The number of the host that leads, or that did before this one.
  std::int64_t leader() const { return leader_; }
  /// This launcher begins the run.
  bool is_first() const { return first_; }
  /// Processes of this host were lost with a launcher before this one, and none has been started since.
  bool takes_over() const { return takes_over_; }
  /// This launcher, which leads, is the last one that has led.
  bool has_led_before() const { return led_before_; }
  const std::vector<LauncherAddress>& given() const { return given_; }

  /// Describes this launcher to another one that has this secret.
  Json hello(const std::string& secret) const;
  /// The secret of the launcher at this port.
  std::string secret_to_call(int port) const { return secret_.to_call(port); }
  const std::string& own_secret() const { return secret_.own(); }
  /// The launcher that leads, which has this secret, has welcomed this one. Throws std::exception where the text is of
  /// something else.
  void heed_welcome(const Json& message, const std::string& secret);
  /// Processes of this host have numbers that other processes of the run have: they end.
  void heed_taken(const Json& numbers) const;

 private:
  enum class Answer { kNone, kWelcome, kElsewhere, kWaits };
  Answer ask(const LauncherAddress& address, std::unique_ptr<ElasticLink>& link, LauncherAddress& elsewhere);
  std::unique_ptr<ElasticLink> welcomed_by(LauncherAddress address);
  std::unique_ptr<ElasticLink> find_first();
  bool interrupted_while_waiting();
  void listen();
  void listen_at_some_port();
  void use_secret();
  void check_other_secret(const LauncherAddress& address);

  const std::vector<LauncherAddress> given_;
  RendezvousSecret secret_;
  const std::string launched_;
  ElasticHost& host_;
  std::unique_ptr<ElasticListener> listener_;
  Membership membership_;
  std::int64_t leader_ = -1;
  std::vector<KnownHost> known_;
  std::vector<MetLauncher> met_;
  bool takes_over_;
  bool interrupted_ = false, first_ = false, led_before_ = false;
  bool waits_ = false;  // somebody has answered who waits for other hosts
  std::string why_;     // nobody has answered
  std::optional<std::chrono::steady_clock::time_point> other_secret_since_;
};

/// The name of this host.
std::string own_host_name();

}  // namespace capstan
