#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/elastic/launcher/host_votes.hpp"

namespace capstan {

/// A decision that a launcher asks another one to accept.
struct HostsProposal {
  HostsDecision decision;
  VoteRecord before;      // what the launcher that leads knew before the decision
  std::int64_t seen = 0;  // the last term of the launcher that is asked, as far as the other one knows
  /// of() throws std::exception where the text is of something else.
  Json json() const;
  static HostsProposal of(const Json& json);
};

/// Which hosts make up an elastic run, as one launcher knows it, and whether this launcher may lead the run. At most
/// one run goes on, whatever links and hosts do: the hosts change by decisions alone, a decision is taken once a
/// majority of the hosts before it has accepted it (of two equal halves, the one with the lowest-numbered host), and
/// whoever leads asks that majority what it has accepted first. The caller carries messages and tells the time; how a
/// link to another host was lost makes no difference.
class Membership {
 public:
  enum class Role {
    kSearches,  // no launcher that leads is known: this one trains nothing
    kFollows,   // another launcher leads
    kLeads      // this launcher leads, and trains once is_settled()
  };

  /// `patience`: seconds after which a launcher that searches leads although it meets one with a lower number, which
  /// may meet fewer hosts. `wait`: seconds that it searches at most.
  struct Times {
    double patience = 5, wait = 600;
  };
  Membership(HostId own, VoteRecord record, Times times);

  const HostId& own() const { return own_; }
  /// The launcher that leads has given this host another number.
  void take_number(std::int64_t number) { own_.number = number; }
  Role role() const { return role_; }
  const VoteRecord& record() const { return record_; }
  /// The hosts of the run.
  const std::vector<HostId>& hosts() const { return record_.decided.hosts; }

  /// This launcher begins a run, of its own host alone.
  void begin();

  /// The launcher that led is lost, or the majority of the hosts.
  void search(double now);
  /// The hosts that are left have not come back in time.
  double wait() const { return times_.wait; }
  bool is_over(double now) const { return role_ == Role::kSearches && now - since_ >= times_.wait; }
  /// Whether this launcher is to lead those that it meets.
  bool is_to_lead(double now) const;
  void lead();

  /// Another launcher can be reached: one that searches as well, or one that joins this launcher, which leads. False
  /// where this launcher may not lead any more, because the other one remembers a later decision.
  bool meet(const HostId& host, const VoteRecord& record);
  /// The link to it is lost, or it follows another launcher.
  void lose(const HostId& host);
  /// The hosts that this launcher meets, without itself.
  std::set<HostId> met() const;

  /// Of a launcher that leads: whether those that it meets may decide. Otherwise it has to search().
  bool may_go_on() const;
  /// Nothing that was proposed is undecided.
  bool is_settled() const { return !proposed_; }
  /// Proposes all hosts that this launcher meets and its own, but not `leaving`. The proposals go to each host that it
  /// meets, those that leave included: theirs count as voices.
  std::map<HostId, HostsProposal> propose(const std::set<HostId>& leaving = {});
  /// A host has accepted what was proposed with this term. True where that takes the decision.
  bool count(const HostId& host, std::int64_t term);

  /// Accepts what the launcher that leads proposes, and follows it. False, and nothing is changed, where that launcher
  /// does not know all that this one has accepted.
  bool accept(const HostsProposal& proposal);
  /// The decision with this term was taken.
  void learn(std::int64_t term);

 private:
  std::set<HostId> present() const;
  VoteRecord known() const;
  bool settle();

  HostId own_;
  VoteRecord record_;
  Times times_;
  Role role_ = Role::kSearches;
  double since_ = 0;                       // it searches
  std::map<HostId, VoteRecord> met_;       // with what they remember
  VoteRecord before_;                      // while it leads: without what it has proposed itself
  std::optional<HostsDecision> proposed_;  // and not decided
  std::set<HostId> voices_;                // that have accepted it
  std::int64_t last_term_ = 0;             // that any launcher has told of
};

}  // namespace capstan
