#include "core/elastic/launcher/membership.hpp"

#include <algorithm>
#include <stdexcept>

namespace capstan {
namespace {

/// Terms count in the upper bits; the lower ones are of the launcher's key, so that no two launchers make the same.
constexpr int kKeyBits = 20;

}  // namespace

Json HostsProposal::json() const {
  Json json = Json::object();
  json["decision"] = json_of(decision);
  json["before"] = before.json();
  json["seen"] = seen;
  return json;
}

HostsProposal HostsProposal::of(const Json& json) {
  HostsProposal proposal{decision_of(json.at("decision")), VoteRecord::of(json.at("before")),
                         json.at("seen").as_integer()};
  if (proposal.decision.term <= proposal.before.last_term()) throw std::out_of_range("a proposal has an earlier term");
  return proposal;
}

Membership::Membership(HostId own, VoteRecord record, Times times)
    : own_(own), record_(std::move(record)), times_(times), last_term_(record_.last_term()) {}

void Membership::begin() {
  role_ = Role::kLeads;
  before_ = record_;
  propose();
}

void Membership::search(double now) {
  if (role_ != Role::kSearches || since_ == 0) since_ = now;
  role_ = Role::kSearches;
  proposed_.reset();
  voices_.clear();
  met_.clear();
}

std::set<HostId> Membership::met() const {
  std::set<HostId> hosts;
  for (const auto& [host, unused] : met_) hosts.insert(host);
  return hosts;
}

std::set<HostId> Membership::present() const {
  std::set<HostId> hosts = met();
  hosts.insert(own_);
  return hosts;
}

VoteRecord Membership::known() const {
  VoteRecord all = record_;
  for (const auto& [unused, record] : met_) all.merge(record);
  return all;
}

bool Membership::is_to_lead(double now) const {
  if (role_ != Role::kSearches) return false;
  const VoteRecord all = known();
  if (all.decided.hosts.empty() || !all.names(own_) || !all.is_carried_by(present())) return false;
  const bool lowest = met_.empty() || own_ < met_.begin()->first;
  return lowest || now - since_ >= times_.patience;
}

void Membership::lead() {
  record_ = before_ = known();
  role_ = Role::kLeads;
}

bool Membership::meet(const HostId& host, const VoteRecord& record) {
  last_term_ = std::max(last_term_, record.last_term());
  if (role_ == Role::kLeads) {
    if (record.decided.term > record_.decided.term) return false;
    before_.merge(record);
  }
  met_[host] = record;
  return true;
}

void Membership::lose(const HostId& host) { met_.erase(host); }

bool Membership::may_go_on() const { return before_.is_carried_by(present()); }

std::map<HostId, HostsProposal> Membership::propose(const std::set<HostId>& leaving) {
  last_term_ = std::max(last_term_, record_.last_term());
  HostsDecision decision;
  decision.basis = before_.last_term();
  decision.term = (((last_term_ >> kKeyBits) + 1) << kKeyBits) | (own_.key & ((1 << kKeyBits) - 1));
  for (const HostId& host : present()) {
    if (!leaving.contains(host)) decision.hosts.push_back(host);
  }
  last_term_ = decision.term;
  std::map<HostId, HostsProposal> proposals;
  for (auto& [host, record] : met_) {
    proposals[host] = {decision, before_, record.last_term()};
    // An older proposal of this launcher that nobody has decided is replaced.
    record = before_;
    record.accepted.push_back(decision);
  }
  record_ = before_;
  record_.accepted.push_back(decision);
  proposed_ = std::move(decision);
  voices_ = {own_};
  settle();
  return proposals;
}

bool Membership::count(const HostId& host, std::int64_t term) {
  if (!proposed_ || proposed_->term != term || !met_.contains(host)) return false;
  voices_.insert(host);
  return settle();
}

/// Takes the decision where enough have accepted it.
bool Membership::settle() {
  if (!before_.is_carried_by(voices_)) return false;
  record_ = before_ = {*proposed_, {}};
  proposed_.reset();
  return true;
}

bool Membership::accept(const HostsProposal& proposal) {
  if (role_ == Role::kLeads || proposal.seen != record_.last_term() || proposal.decision.term <= proposal.seen) {
    return false;
  }
  role_ = Role::kFollows;
  met_.clear();
  record_ = proposal.before;
  record_.accepted.push_back(proposal.decision);
  last_term_ = std::max(last_term_, proposal.decision.term);
  return true;
}

void Membership::learn(std::int64_t term) {
  const auto found = std::find_if(record_.accepted.begin(), record_.accepted.end(),
                                  [&](const HostsDecision& one) { return one.term == term; });
  if (found == record_.accepted.end()) return;
  record_.decided = *found;
  record_.accepted.erase(record_.accepted.begin(), std::next(found));
}

}  // namespace capstan
