#include "core/elastic/launcher/host_votes.hpp"

#include <algorithm>
#include <stdexcept>

namespace capstan {
namespace {

/// Beyond any that a run comes to; World::order() has room for so many.
constexpr std::int64_t kMostHosts = 1'000'000'000, kGreatestTerm = std::int64_t{1} << 50;

bool is_term(std::int64_t term) { return term >= 0 && term <= kGreatestTerm; }

}  // namespace

HostId checked(const HostId& host) {
  if (host.number <= kMostHosts && host.key >= 0) return host;
  throw std::out_of_range("a host has the number " + std::to_string(host.number) + " and the key " +
                          std::to_string(host.key));
}

bool is_majority(const std::vector<HostId>& hosts, const std::set<HostId>& present) {
  if (hosts.empty()) return true;
  const auto there = static_cast<std::size_t>(
      std::count_if(hosts.begin(), hosts.end(), [&](const HostId& host) { return present.contains(host); }));
  if (2 * there != hosts.size()) return 2 * there > hosts.size();
  return present.contains(*std::min_element(hosts.begin(), hosts.end()));
}

bool VoteRecord::is_carried_by(const std::set<HostId>& present) const {
  return is_majority(decided.hosts, present) &&
         std::all_of(accepted.begin(), accepted.end(),
                     [&](const HostsDecision& one) { return is_majority(one.hosts, present); });
}

bool VoteRecord::names(const HostId& host) const {
  const auto named = [&](const HostsDecision& one) {
    return std::find(one.hosts.begin(), one.hosts.end(), host) != one.hosts.end();
  };
  return named(decided) || std::any_of(accepted.begin(), accepted.end(), named);
}

void VoteRecord::merge(const VoteRecord& other) {
  if (other.decided.term > decided.term) decided = other.decided;
  for (const HostsDecision& one : other.accepted) {
    const auto place = std::lower_bound(accepted.begin(), accepted.end(), one.term,
                                        [](const HostsDecision& own, std::int64_t term) { return own.term < term; });
    if (place == accepted.end() || place->term != one.term) accepted.insert(place, one);
  }
  std::erase_if(accepted,
                [&](const HostsDecision& one) { return one.term <= decided.term || one.basis < decided.term; });
}

Json json_of(const HostsDecision& decision) {
  Json json = Json::object();
  json["term"] = decision.term;
  json["basis"] = decision.basis;
  json["hosts"] = Json::array();
  for (const HostId& host : decision.hosts) {
    Json one = Json::array();
    one.push_back(host.number);
    one.push_back(host.key);
    json["hosts"].push_back(std::move(one));
  }
  return json;
}

HostsDecision decision_of(const Json& json) {
  HostsDecision decision{json.at("term").as_integer(), json.at("basis").as_integer(), {}};
  for (const Json& one : json.at("hosts").as_array()) {
    decision.hosts.push_back(checked({one.as_array().at(0).as_integer(), one.as_array().at(1).as_integer()}));
  }
  if (!is_term(decision.term) || !is_term(decision.basis))
    throw std::out_of_range("a decision has the term " + std::to_string(decision.term) + ", based on " +
                            std::to_string(decision.basis));
  return decision;
}

Json VoteRecord::json() const {
  Json json = Json::object();
  json["decided"] = json_of(decided);
  json["accepted"] = Json::array();
  for (const HostsDecision& one : accepted) json["accepted"].push_back(json_of(one));
  return json;
}

VoteRecord VoteRecord::of(const Json& json) {
  VoteRecord record{decision_of(json.at("decided")), {}};
  for (const Json& one : json.at("accepted").as_array()) record.accepted.push_back(decision_of(one));
  std::int64_t last = record.decided.term;
  for (const HostsDecision& one : record.accepted) {
    if (one.term <= last) throw std::out_of_range("accepted decisions are not in the order of their terms");
    last = one.term;
  }
  return record;
}

}  // namespace capstan
