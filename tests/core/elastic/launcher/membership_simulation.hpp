#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/elastic/launcher/membership.hpp"

namespace capstan {

/// One random schedule of a run over several hosts, in a clock of its own: links fail in one direction or both, late
/// or by a reset, hosts stop and wake, their launchers are killed and started again, leave, or give up waiting. Each
/// host has a Membership under test; this class carries what they say, and publishes checkpoints behind a fence that
/// takes the newest run that has come to it, as SaveFence does in a folder.
class MembershipSimulation {
 public:
  explicit MembershipSimulation(std::uint64_t seed) : random_(seed) {
    const int count = 2 + below(4);
    leaves_ = chance(0.2);
    gives_up_ = chance(0.1);
    const Membership::Times times{3.0, gives_up_ ? 12.0 : 1e6};
    for (int number = 0; number < count; ++number) {
      hosts_.push_back({HostId{number, 100 + number}, times});
    }
    host(0).begun = true;
    host(0).membership.begin();
    note_decision(0);
  }

  /// What went wrong, a sentence; empty where nothing did.
  std::string run() {
    for (int step = 0; step < 80 && fault_.empty(); ++step) {
      if (step >= 8) disturb();
      pass();
    }
    heal();
    for (int step = 0; step < 80 && fault_.empty(); ++step) pass();
    if (fault_.empty() && !gives_up_ && !leaves_) check_together();
    return fault_;
  }
  std::int64_t decisions() const { return static_cast<std::int64_t>(taken_.size()); }
  std::int64_t published() const { return published_; }
  std::int64_t fenced() const { return fenced_; }

 private:
  static constexpr double kPass = 0.5, kSilent = 5;

  enum class Kind { kHello, kSearching, kElsewhere, kProposal, kAccepted, kDecided, kLeaves, kClosed };
  struct Message {
    Kind kind = Kind::kHello;
    VoteRecord record = {};
    HostsProposal proposal = {};
    std::int64_t term = 0, generation = 0;
  };
  /// A connection of two hosts; each end closes for itself.
  struct Session {
    int ends[2];
    bool open[2] = {true, true};
    double heard[2] = {0, 0};
    std::vector<Message> under_way[2];  // to each end
  };
  /// Whose checkpoint this is.
  struct Token {
    std::int64_t term = 0, generation = 0;
    auto operator<=>(const Token&) const = default;
  };
  struct Save {
    Token token;
    double ends_at = 0;
  };
  struct Host {
    Host(HostId id, Membership::Times times) : times(times), membership(id, {}, times) {}
    Membership::Times times;
    Membership membership;
    bool begun = false;  // its launcher has been started for the first time
    bool gone = false;   // it has left, or given up
    bool down = false;   // killed, and to be started again
    double stopped_until = 0;
    std::map<int, int> links;   // the session with each host that was heard last
    int leader = -1;            // the session with the one that it follows
    std::optional<Token> runs;  // it trains in this generation
    std::vector<Save> saves;    // under way
  };

  int below(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  bool chance(double share) { return static_cast<double>(random_() % 1000000) < share * 1e6; }
  Host& host(int number) { return hosts_[static_cast<std::size_t>(number)]; }
  Session& session(int number) { return sessions_[static_cast<std::size_t>(number)]; }
  int count() const { return static_cast<int>(hosts_.size()); }
  bool acts(int number) {
    const Host& one = host(number);
    return one.begun && !one.gone && !one.down && one.stopped_until <= now_;
  }
  bool is_cut(int from, int to) const { return cut_.contains({from, to}); }
  int end_of(const Session& one, int number) const { return one.ends[0] == number ? 0 : 1; }
  int peer_in(const Session& one, int number) const { return one.ends[0] == number ? one.ends[1] : one.ends[0]; }

  void disturb() {
    const int one = below(count()), other = below(count());
    if (chance(0.08) && one != other) {
      cut_.insert({one, other});
      if (chance(0.7)) cut_.insert({other, one});
    }
    if (chance(0.10) && !cut_.empty()) cut_.clear();
    if (chance(0.06)) host(one).stopped_until = now_ + 0.5 + below(30) * 0.5;
    if (chance(0.06) && !sessions_.empty()) {
      Session& reset = session(below(static_cast<int>(sessions_.size())));
      for (const int end : {0, 1}) {
        if (reset.open[end]) reset.under_way[end].push_back({Kind::kClosed});
      }
    }
    if (chance(0.03)) kill(one);
    if (leaves_ && chance(0.02)) leave(other);
  }
  void heal() {
    cut_.clear();
    for (Host& one : hosts_) {
      one.stopped_until = 0;
      one.down = false;
      one.begun = true;
    }
  }

  /// The launcher is gone, and another one takes over what it remembers.
  void kill(int number) {
    Host& one = host(number);
    if (!one.begun || one.gone || one.down) return;
    for (Session& each : sessions_) {
      if (each.ends[0] != number && each.ends[1] != number) continue;
      close(each, number, chance(0.7));
    }
    const VoteRecord record = one.membership.record();
    one.membership = Membership(one.membership.own(), record, one.times);
    one.membership.search(now_);
    one.links.clear();
    one.leader = -1;
    one.runs.reset();
    one.saves.clear();
    one.down = true;
  }
  void leave(int number) {
    Host& one = host(number);
    if (!acts(number) || count_gone() + 2 >= count()) return;
    if (one.membership.role() == Membership::Role::kFollows && one.leader >= 0) {
      send(one.leader, number, {Kind::kLeaves});
    } else if (one.membership.role() == Membership::Role::kLeads && !one.membership.met().empty()) {
      propose(number, {one.membership.own()});
    }
  }
  int count_gone() const {
    return static_cast<int>(std::count_if(hosts_.begin(), hosts_.end(), [](const Host& one) { return one.gone; }));
  }

  void pass() {
    now_ += kPass;
    for (int number = 0; number < count(); ++number) {
      Host& one = host(number);
      if (!one.begun && chance(0.3)) one.begun = true;
      if (one.down && chance(0.2)) one.down = false;
    }
    for (int round = 0; round < 3; ++round) {
      for (std::size_t each = 0; each < sessions_.size(); ++each) carry(static_cast<int>(each));
    }
    for (int number = 0; number < count(); ++number) {
      if (acts(number)) act(number);
    }
    std::erase_if(cut_, [&](const auto&) { return chance(0.02); });
  }

  /// Brings to each end what has been sent, where the link carries it and the end does not stand still.
  void carry(int number) {
    for (const int end : {0, 1}) {
      const int to = session(number).ends[end], from = session(number).ends[1 - end];
      if (!session(number).open[end] || !acts(to) || is_cut(from, to)) continue;
      if (session(number).open[1 - end] && acts(from)) session(number).heard[end] = now_;  // a sign of life
      if (chance(0.2)) continue;                                                           // slow
      const std::vector<Message> all = std::move(session(number).under_way[end]);
      session(number).under_way[end].clear();
      for (const Message& message : all) {
        if (!session(number).open[end]) break;
        session(number).heard[end] = now_;
        hear(to, number, message);
      }
    }
  }
  void send(int number, int from, Message message) {
    Session& one = session(number);
    const int end = 1 - end_of(one, from);
    if (one.open[1 - end]) one.under_way[end].push_back(std::move(message));
  }
  /// `told`: the other end learns of it once the link carries that.
  void close(Session& one, int number, bool told = true) {
    const int end = end_of(one, number);
    if (!one.open[end]) return;
    one.open[end] = false;
    if (told && one.open[1 - end]) one.under_way[1 - end].push_back({Kind::kClosed});
  }

  void act(int number) {
    Host& one = host(number);
    for (std::size_t each = 0; each < sessions_.size(); ++each) {
      Session& link = sessions_[each];
      if (link.ends[0] != number && link.ends[1] != number) continue;
      const int end = end_of(link, number);
      if (!link.open[end] || now_ - link.heard[end] < kSilent) continue;
      close(link, number);
      lost(number, static_cast<int>(each));
    }
    save(number);
    if (one.membership.role() != Membership::Role::kSearches) return;
    if (one.membership.is_over(now_)) {
      one.gone = true;
      for (Session& link : sessions_) {
        if (link.ends[0] == number || link.ends[1] == number) close(link, number);
      }
      return;
    }
    if (one.membership.is_to_lead(now_)) {
      one.membership.lead();
      return propose(number, {});
    }
    for (int other = 0; other < count(); ++other) {
      const auto link = one.links.find(other);
      if (other == number ||
          (link != one.links.end() && session(link->second).open[end_of(session(link->second), number)]))
        continue;
      if (is_cut(number, other) || is_cut(other, number) || host(other).down || host(other).gone || !host(other).begun)
        continue;
      one.links[other] = static_cast<int>(sessions_.size());
      sessions_.push_back({{number, other}, {true, true}, {now_, now_}, {}});
      send(one.links[other], number, {Kind::kHello, one.membership.record()});
    }
  }

  void hear(int number, int link, const Message& message) {
    Host& one = host(number);
    Membership& membership = one.membership;
    const int peer = peer_in(session(link), number);
    const HostId& peer_id = host(peer).membership.own();
    switch (message.kind) {
      case Kind::kHello:
        if (membership.role() == Membership::Role::kFollows) {
          send(link, number, {Kind::kElsewhere});
          return close(session(link), number);
        }
        if (membership.role() == Membership::Role::kLeads) return welcome(number, link, message.record);
        one.links[peer] = link;
        membership.meet(peer_id, message.record);
        return send(link, number, {Kind::kSearching, membership.record()});
      case Kind::kSearching:
        if (membership.role() == Membership::Role::kLeads) return welcome(number, link, message.record);
        if (membership.role() == Membership::Role::kFollows) return;
        one.links[peer] = link;
        membership.meet(peer_id, message.record);
        return;
      case Kind::kElsewhere:
        return;
      case Kind::kProposal:
        if (one.leader >= 0 && one.leader != link) return close(session(link), number);
        if (!membership.accept(message.proposal)) {
          close(session(link), number);
          return lost(number, link);
        }
        one.leader = link;
        for (std::size_t each = 0; each < sessions_.size(); ++each) {
          Session& other = sessions_[each];
          if (static_cast<int>(each) != link && (other.ends[0] == number || other.ends[1] == number)) {
            close(other, number);
          }
        }
        return send(link, number, {Kind::kAccepted, {}, {}, message.proposal.decision.term});
      case Kind::kAccepted:
        if (membership.role() == Membership::Role::kLeads && one.links[peer] == link &&
            membership.count(peer_id, message.term)) {
          decided(number);
        }
        return;
      case Kind::kDecided:
        if (one.leader != link) return;
        membership.learn(message.term);
        generation_of_[number] = std::max(generation_of_[number], message.generation);
        one.runs = Token{message.term, message.generation};
        if (!membership.record().names(membership.own())) end(number);
        return;
      case Kind::kLeaves:
        if (membership.role() == Membership::Role::kLeads) change(number, {peer_id});
        return;
      case Kind::kClosed:
        close(session(link), number, false);
        return lost(number, link);
    }
  }

  void welcome(int number, int link, const VoteRecord& record) {
    Host& one = host(number);
    const int peer = peer_in(session(link), number);
    if (one.links.contains(peer) && one.links[peer] != link) close(session(one.links[peer]), number);
    one.links[peer] = link;
    one.membership.lose(host(peer).membership.own());
    one.membership.meet(host(peer).membership.own(), record) ? change(number, {}) : search(number);
  }
  void end(int number) {
    host(number).gone = true;
    host(number).runs.reset();
    for (Session& link : sessions_) {
      if (link.ends[0] == number || link.ends[1] == number) close(link, number);
    }
  }

  void lost(int number, int link) {
    Host& one = host(number);
    const int peer = peer_in(session(link), number);
    if (one.leader == link) return search(number);
    const auto found = one.links.find(peer);
    if (found == one.links.end() || found->second != link) return;
    one.links.erase(found);
    for (Session& other : sessions_) {  // so that the other host calls again
      if (std::set<int>{other.ends[0], other.ends[1]} == std::set<int>{number, peer}) close(other, number);
    }
    one.membership.lose(host(peer).membership.own());
    if (one.membership.role() == Membership::Role::kLeads) change(number, {});
  }
  void search(int number) {
    Host& one = host(number);
    for (Session& link : sessions_) {
      if (link.ends[0] == number || link.ends[1] == number) close(link, number);
    }
    one.links.clear();
    one.leader = -1;
    one.runs.reset();  // its processes are told to wait; a save that has begun goes on
    one.membership.search(now_);
  }
  void change(int number, const std::set<HostId>& leaving) {
    host(number).membership.may_go_on() ? propose(number, leaving) : search(number);
  }
  void propose(int number, const std::set<HostId>& leaving) {
    Membership& membership = host(number).membership;
    before_[number] = membership.record();
    const auto proposals = membership.propose(leaving);
    if (!proposals.empty()) before_[number] = proposals.begin()->second.before;
    for (const auto& [to, proposal] : proposals) {
      send(host(number).links[static_cast<int>(to.number)], number, {Kind::kProposal, {}, proposal});
    }
    if (membership.is_settled()) decided(number);
  }
  void decided(int number) {
    note_decision(number);
    Host& one = host(number);
    const std::int64_t term = one.membership.record().decided.term;
    const std::int64_t generation = ++generation_of_[number];
    for (const HostId& to : one.membership.met()) {
      send(one.links[static_cast<int>(to.number)], number, {Kind::kDecided, {}, {}, term, generation});
    }
    one.runs = Token{term, generation};
    if (!one.membership.record().names(one.membership.own())) end(number);
  }

  /// By their terms, each decision that is taken follows the one before: its maker knew that one.
  void note_decision(int number) {
    const HostsDecision& decision = host(number).membership.record().decided;
    const auto place = taken_.emplace(decision.term, Taken{decision.hosts, before_[number]}).first;
    if (place != taken_.begin()) check_follows(*std::prev(place), *place);
    if (std::next(place) != taken_.end()) check_follows(*place, *std::next(place));
  }
  struct Taken {
    std::vector<HostId> hosts;
    VoteRecord before;
  };
  void check_follows(const std::pair<const std::int64_t, Taken>& first,
                     const std::pair<const std::int64_t, Taken>& next) {
    const VoteRecord& before = next.second.before;
    const bool knew = before.decided.term == first.first ||
                      std::any_of(before.accepted.begin(), before.accepted.end(),
                                  [&](const HostsDecision& one) { return one.term == first.first; });
    if (!knew) fail("the run goes on with " + text(first.second.hosts) + ", and with " + text(next.second.hosts));
  }

  /// The first host of a run saves now and then.
  void save(int number) {
    Host& one = host(number);
    for (const Save& save : one.saves) {
      if (save.ends_at > now_) continue;
      // One operation decides: what was written aside is still where the fence of this run put it.
      if (save.token != fence_) {
        ++fenced_;
        continue;
      }
      if (save.token < last_published_) fail("'latest' went back");
      last_published_ = save.token;
      ++published_;
    }
    std::erase_if(one.saves, [&](const Save& save) { return save.ends_at <= now_; });
    if (!one.runs || one.saves.size() > 1 || !chance(0.3)) return;
    if (*one.runs < fence_) return;
    fence_ = *one.runs;
    one.saves.push_back({fence_, now_ + below(6) * 0.5});
  }

  void check_together() {
    int leads = 0, follow = 0, live = 0;
    for (int number = 0; number < count(); ++number) {
      const Host& one = host(number);
      if (one.gone) continue;
      ++live;
      leads += one.membership.role() == Membership::Role::kLeads ? 1 : 0;
      follow += one.membership.role() == Membership::Role::kFollows ? 1 : 0;
    }
    if (leads == 1 && leads + follow == live) return;
    fail("of " + std::to_string(live) + " hosts " + std::to_string(leads) + " lead and " + std::to_string(follow) +
         " follow, although nothing disturbs them any more");
  }
  void fail(const std::string& why) {
    std::ostringstream all;
    all << "at " << now_ << " s: " << why;
    if (fault_.empty()) fault_ = all.str();
  }
  static std::string text(const std::vector<HostId>& hosts) {
    std::string all = "hosts";
    for (const HostId& one : hosts) all += " " + std::to_string(one.number);
    return all;
  }

  std::mt19937_64 random_;
  bool leaves_ = false, gives_up_ = false;
  double now_ = 100;
  std::vector<Host> hosts_;
  std::vector<Session> sessions_;
  std::set<std::pair<int, int>> cut_;  // from, to
  std::map<int, VoteRecord> before_;
  std::map<int, std::int64_t> generation_of_;
  std::map<std::int64_t, Taken> taken_;  // decisions, by term
  Token fence_, last_published_;
  std::int64_t published_ = 0, fenced_ = 0;
  std::string fault_;
};

}  // namespace capstan
