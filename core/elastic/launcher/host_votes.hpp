#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// A launcher of an elastic run: the number of its host in the run, and a random key, so that no other launcher is
/// taken for this one.
struct HostId {
  std::int64_t number = -1, key = 0;
  auto operator<=>(const HostId&) const = default;
};

/// Throws std::out_of_range where the number is too great, or the key below 0.
HostId checked(const HostId& host);

/// The hosts that make up a run from some instant on, as the launcher that leads proposes them.
struct HostsDecision {
  std::int64_t term = 0;   // two decisions never have the same one, and later decisions have greater ones
  std::int64_t basis = 0;  // the greatest term of a decision that its maker built on
  std::vector<HostId> hosts;
  bool operator==(const HostsDecision&) const = default;
};

/// Whether `present` holds a majority of these hosts, or of two equal halves the one with the lowest-numbered host.
/// True for an empty list.
bool is_majority(const std::vector<HostId>& hosts, const std::set<HostId>& present);

/// The decisions that a launcher remembers.
struct VoteRecord {
  HostsDecision decided;                // the last that enough hosts have accepted, as far as this launcher knows
  std::vector<HostsDecision> accepted;  // later ones that this launcher has accepted, by term: perhaps others have, too

  std::int64_t last_term() const { return accepted.empty() ? decided.term : accepted.back().term; }
  /// Whether `present` may decide: it holds a majority of the decided hosts, and of those of each decision that may
  /// have been taken since.
  bool is_carried_by(const std::set<HostId>& present) const;
  bool names(const HostId& host) const;
  /// Adds what another launcher remembers. Accepted decisions whose maker did not know the newest decided one are
  /// dropped: they cannot have been taken.
  void merge(const VoteRecord& other);
  bool operator==(const VoteRecord&) const = default;

  /// of() throws std::exception where the text is of something else.
  Json json() const;
  static VoteRecord of(const Json& json);
};

Json json_of(const HostsDecision& decision);
HostsDecision decision_of(const Json& json);

}  // namespace capstan
