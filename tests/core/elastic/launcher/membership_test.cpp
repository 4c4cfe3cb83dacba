#include "core/elastic/launcher/membership.hpp"

#include <gmock/gmock.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/core/elastic/launcher/membership_simulation.hpp"

namespace capstan {
namespace {

using Role = Membership::Role;

const HostId kHosts[] = {{0, 100}, {1, 101}, {2, 102}, {3, 103}};

std::vector<HostId> first(int count) { return {kHosts, kHosts + count}; }

/// Launchers of one run, the first of which leads; it ended with this decision.
std::vector<Membership> together(int count, Membership::Times times = {}) {
  std::vector<Membership> all;
  for (int number = 0; number < count; ++number) all.emplace_back(kHosts[number], VoteRecord{}, times);
  all[0].begin();
  for (int number = 1; number < count; ++number) all[0].meet(kHosts[number], {});
  for (const auto& [host, proposal] : all[0].propose()) {
    Membership& other = all[static_cast<std::size_t>(host.number)];
    EXPECT_TRUE(other.accept(proposal));
    all[0].count(host, proposal.decision.term);
    other.learn(proposal.decision.term);
  }
  return all;
}

/// Two launchers that have lost the one that led meet.
void meet(Membership& one, Membership& other) {
  one.meet(other.own(), other.record());
  other.meet(one.own(), one.record());
}

TEST(Majority, IsMoreThanHalfOrTheHalfWithTheLowestNumber) {
  for (int count = 1; count <= 4; ++count) {
    for (int chosen = 0; chosen < 1 << count; ++chosen) {
      std::set<HostId> present;
      for (int host = 0; host < count; ++host) {
        if ((chosen >> host & 1) != 0) present.insert(kHosts[host]);
      }
      const int there = static_cast<int>(present.size());
      const bool expected = there > count - there || (there == count - there && (chosen & 1) != 0);
      EXPECT_EQ(is_majority(first(count), present), expected) << count << " hosts, " << chosen;
    }
  }
}

TEST(Majority, CountsNoLauncherThatHasOnlyTheNumberOfAnother) {
  EXPECT_FALSE(is_majority(first(3), {kHosts[0], {1, 999}}));
}

TEST(VoteRecord, DropsADecisionWhoseMakerDidNotKnowTheNewestOne) {
  const HostsDecision older{5, 0, first(2)}, newer{10, 5, {kHosts[0]}};
  // Proposed on the older one after a majority had taken the newer one: nobody could take it any more.
  const HostsDecision late{12, 5, {kHosts[1], kHosts[2], kHosts[3]}}, next{13, 10, first(2)};
  VoteRecord record{older, {late, next}};
  record.merge({newer, {}});
  EXPECT_EQ(record, (VoteRecord{newer, {next}}));
  EXPECT_TRUE(record.is_carried_by({kHosts[0]}));
}

TEST(VoteRecord, IsReadWhereItsTermsAreInOrderAndInRange) {
  const VoteRecord record{{5, 0, first(2)}, {{7, 5, first(1)}, {9, 7, first(3)}}};
  EXPECT_EQ(VoteRecord::of(Json::parse(record.json().dump())), record);
  const auto refused = [](const VoteRecord& one, const std::string& why) {
    EXPECT_THAT([&] { VoteRecord::of(one.json()); },
                ::testing::ThrowsMessage<std::out_of_range>(::testing::HasSubstr(why)));
  };
  refused({{5, 0, {}}, {{9, 5, {}}, {7, 5, {}}}}, "accepted decisions are not in the order of their terms");
  refused({{-1, 0, {}}, {}}, "a decision has the term -1, based on 0");
  refused({{std::int64_t{1} << 51, 0, {}}, {}}, "a decision has the term 2251799813685248");
  refused({{5, 0, {{0, -3}}}, {}}, "a host has the number 0 and the key -3");
  EXPECT_THROW(HostsProposal::of(HostsProposal{{5, 0, {}}, record, 9}.json()), std::out_of_range);
}

TEST(Membership, OfTwoHostsTheOneWithTheLowestNumberGoesOnAlone) {
  std::vector<Membership> hosts = together(2);
  hosts[0].lose(kHosts[1]);
  EXPECT_TRUE(hosts[0].may_go_on());
  hosts[0].propose();
  EXPECT_TRUE(hosts[0].is_settled());
  EXPECT_EQ(hosts[0].hosts(), first(1));
  hosts[1].search(10);
  EXPECT_FALSE(hosts[1].is_to_lead(1000));
}

TEST(Membership, OfThreeHostsTwoGoOnWhicheverIsLost) {
  std::vector<Membership> hosts = together(3);
  hosts[0].lose(kHosts[1]);
  EXPECT_TRUE(hosts[0].may_go_on());
  hosts[0].lose(kHosts[2]);
  EXPECT_FALSE(hosts[0].may_go_on());
  hosts[1].search(10);
  hosts[2].search(10);
  meet(hosts[1], hosts[2]);
  EXPECT_TRUE(hosts[1].is_to_lead(10));
  EXPECT_FALSE(hosts[2].is_to_lead(10));
  hosts[1].lead();
  const auto proposals = hosts[1].propose();
  ASSERT_EQ(proposals.size(), 1U);
  EXPECT_FALSE(hosts[1].is_settled());
  ASSERT_TRUE(hosts[2].accept(proposals.at(kHosts[2])));
  EXPECT_TRUE(hosts[1].count(kHosts[2], proposals.at(kHosts[2]).decision.term));
  EXPECT_EQ(hosts[1].hosts(), (std::vector<HostId>{kHosts[1], kHosts[2]}));
}

TEST(Membership, AHostThatReturnsJoinsTheRunThatHasGoneOn) {
  std::vector<Membership> hosts = together(2);
  hosts[0].lose(kHosts[1]);
  hosts[0].propose();
  hosts[1].search(10);
  ASSERT_TRUE(hosts[0].meet(kHosts[1], hosts[1].record()));
  const auto proposals = hosts[0].propose();
  EXPECT_TRUE(hosts[0].is_settled());  // of its last generation it is the only host
  EXPECT_TRUE(hosts[1].accept(proposals.at(kHosts[1])));
  EXPECT_EQ(hosts[1].role(), Role::kFollows);
  EXPECT_EQ(hosts[0].hosts(), first(2));
}

TEST(Membership, OneThatHasAcceptedALaterDecisionAcceptsNothingOfWhoDoesNotKnowIt) {
  std::vector<Membership> hosts = together(3);
  hosts[0].lose(kHosts[1]);
  const HostsProposal stale = hosts[0].propose().at(kHosts[2]);
  hosts[1].search(10);
  hosts[2].search(10);
  meet(hosts[1], hosts[2]);
  hosts[1].lead();
  ASSERT_TRUE(hosts[2].accept(hosts[1].propose().at(kHosts[2])));
  EXPECT_FALSE(hosts[2].accept(stale));
}

TEST(Membership, WhatMayHaveBeenDecidedNeedsAMajorityOfThatAsWell) {
  std::vector<Membership> hosts = together(4);
  // 0 goes on with 1, as far as 1 knows; whether 0 has heard that 1 accepts, nobody else can know.
  hosts[0].lose(kHosts[2]);
  hosts[0].lose(kHosts[3]);
  ASSERT_TRUE(hosts[0].may_go_on());
  ASSERT_TRUE(hosts[1].accept(hosts[0].propose().at(kHosts[1])));
  for (const std::size_t host : {1, 2, 3}) hosts[host].search(10);
  meet(hosts[1], hosts[2]);
  meet(hosts[1], hosts[3]);
  meet(hosts[2], hosts[3]);
  EXPECT_FALSE(hosts[1].is_to_lead(1000));  // three of four, and of 0 and 1 the one without the lowest number
}

TEST(Membership, AHostThatLeavesGivesItsVoiceToThoseThatStay) {
  std::vector<Membership> hosts = together(2);
  const HostsProposal proposal = hosts[0].propose({kHosts[0]}).at(kHosts[1]);
  ASSERT_TRUE(hosts[1].accept(proposal));
  EXPECT_TRUE(hosts[0].is_settled());
  hosts[1].learn(proposal.decision.term);
  EXPECT_FALSE(hosts[0].record().names(kHosts[0]));
  hosts[1].search(10);
  EXPECT_TRUE(hosts[1].is_to_lead(10));
}

TEST(Membership, ALauncherThatMeetsEnoughLeadsInTheEndAlsoPastALowerNumberThatDoesNot) {
  std::vector<Membership> hosts = together(4, {.patience = 5, .wait = 60});
  for (const std::size_t host : {1, 2, 3}) hosts[host].search(10);
  meet(hosts[1], hosts[2]);
  meet(hosts[2], hosts[3]);  // 1 does not reach 3
  EXPECT_FALSE(hosts[1].is_to_lead(20));
  EXPECT_FALSE(hosts[2].is_to_lead(14.9));
  EXPECT_TRUE(hosts[2].is_to_lead(15));
  EXPECT_FALSE(hosts[1].is_over(69.9));
  EXPECT_TRUE(hosts[1].is_over(70));
}

TEST(Membership, ALauncherThatIsStartedAgainRemembersWhatItHasAccepted) {
  std::vector<Membership> hosts = together(2);
  Membership again(kHosts[1], VoteRecord::of(Json::parse(hosts[1].record().json().dump())), {});
  EXPECT_EQ(again.record(), hosts[1].record());
  again.search(10);
  EXPECT_FALSE(again.is_to_lead(1000));
  const HostsProposal sent = hosts[0].propose().at(kHosts[1]);
  EXPECT_TRUE(again.accept(HostsProposal::of(Json::parse(sent.json().dump()))));
}

TEST(MembershipSimulation, NeverHasTwoRunsThatPublishAndComesTogetherInTenThousandSchedules) {
  std::int64_t decisions = 0, published = 0, fenced = 0;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    MembershipSimulation simulation(seed);
    ASSERT_EQ(simulation.run(), "") << "seed " << seed;
    decisions += simulation.decisions();
    published += simulation.published();
    fenced += simulation.fenced();
  }
  EXPECT_GT(decisions, 50'000);
  EXPECT_GT(published, 500'000);
  EXPECT_GT(fenced, 10'000);
}

}  // namespace
}  // namespace capstan
