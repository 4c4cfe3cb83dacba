#include "plugins/accelerators/cuda/nccl_communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"

// The communicator over calls that answer as NCCL's non-blocking ones do, without a GPU.

namespace capstan::accelerators {
namespace {

using testing::ElementsAre;

constexpr int kRemoteError = 6, kInvalidUsage = 5;

/// Notes the calls, and gives the answers that a test sets.
struct StandIn {
  std::vector<std::string> calls;
  int init = NcclApi::kInProgress, group_end = NcclApi::kInProgress, send = NcclApi::kSuccess;
  int looks = 3;  // at which it is still in progress
  int after = NcclApi::kSuccess;
  unsigned version = 0;
  int blocking = -1;
  int left = 0;

  void begin_work() { left = looks; }
};
StandIn* nccl = nullptr;
int communicator_memory = 0;

const NcclApi kApi{
    [](NcclId*) { return NcclApi::kSuccess; },
    [](void** made, int, NcclId, int, NcclConfig* config) {
      nccl->calls.push_back("init");
      nccl->version = config->version;
      nccl->blocking = config->blocking;
      nccl->begin_work();
      *made = &communicator_memory;
      return nccl->init;
    },
    [](void*) {
      nccl->calls.push_back("finalize");
      nccl->begin_work();
      return NcclApi::kInProgress;
    },
    [](void*) {
      nccl->calls.push_back("destroy");
      return NcclApi::kSuccess;
    },
    [](void*) {
      nccl->calls.push_back("abort");
      return NcclApi::kSuccess;
    },
    [](void*, int* error) {
      *error = nccl->left > 0 ? NcclApi::kInProgress : nccl->after;
      if (nccl->left > 0) --nccl->left;
      return NcclApi::kSuccess;
    },
    [](int code) { return code == kRemoteError ? "remote error" : "invalid usage"; },
    [](void*) { return "a cable"; },
    [] {
      nccl->calls.push_back("group");
      return NcclApi::kSuccess;
    },
    [] {
      nccl->calls.push_back("end");
      nccl->begin_work();
      return nccl->group_end;
    },
    [](const void*, std::size_t bytes, int, int peer, void*, void*) {
      nccl->calls.push_back("send " + std::to_string(bytes) + " to " + std::to_string(peer));
      return nccl->send;
    },
    [](void*, std::size_t bytes, int, int peer, void*, void*) {
      nccl->calls.push_back("receive " + std::to_string(bytes) + " from " + std::to_string(peer));
      return NcclApi::kSuccess;
    },
};

class NcclCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override { nccl = &nccl_; }
  NcclCommunicator made() { return {kApi, {}, 0, 2, never_}; }
  std::string words(const std::function<void()>& call) {
    try {
      call();
    } catch (const sdk::Error& error) {
      return error.what();
    }
    return "nothing";
  }

  StandIn nccl_;
  const NcclCommunicator::Stop never_ = [] { return false; };
  const std::vector<NcclCommunicator::Piece> one_{{1, nullptr, 8}};
};

TEST_F(NcclCommunicatorTest, AsksForCallsThatDoNotBlockAndLeavesInOrder) {
  { NcclCommunicator communicator(kApi, {}, 0, 2, never_); }
  EXPECT_EQ(nccl_.blocking, 0);
  EXPECT_EQ(nccl_.version, 21400U);
  EXPECT_THAT(nccl_.calls, ElementsAre("init", "finalize", "destroy"));
}

TEST_F(NcclCommunicatorTest, WaitsUntilNcclHasQueuedTheGroupAndThenForTheDevice) {
  NcclCommunicator communicator(kApi, {}, 0, 2, never_);
  nccl_.calls.clear();
  communicator.start(one_, {{1, nullptr, 16}}, nullptr);
  EXPECT_THAT(nccl_.calls, ElementsAre("group", "receive 16 from 1", "send 8 to 1", "end"));
  int left_when_queued = -1, looks = 0;
  EXPECT_TRUE(communicator.wait([&] { left_when_queued = nccl_.left; },
                                [&] { return left_when_queued == 0 && ++looks == 5; }, never_));
  EXPECT_EQ(left_when_queued, 0);
  EXPECT_EQ(looks, 5);
}

TEST_F(NcclCommunicatorTest, GivesUpWhereTheOthersDoNotCome) {
  nccl_.looks = 1'000'000'000;
  int asked = 0;
  EXPECT_EQ(words([&] { NcclCommunicator(kApi, {}, 0, 2, [&] { return ++asked == 3; }); }),
            "NCCL: not all processes of the group have come.");
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(nccl_.calls, ElementsAre("init", "abort"));
}

TEST_F(NcclCommunicatorTest, AbortsWhereItIsToldToInEitherHalfOfAnExchange) {
  for (const bool queued : {false, true}) {
    nccl_ = {};
    NcclCommunicator communicator(kApi, {}, 0, 2, never_);
    nccl_.calls.clear();
    nccl_.looks = queued ? 0 : 1'000'000'000;
    communicator.start(one_, one_, nullptr);
    bool called = false;
    EXPECT_FALSE(communicator.wait([&] { called = true; }, [] { return false; }, [] { return true; }));
    EXPECT_EQ(called, queued);
    EXPECT_EQ(nccl_.calls.back(), "abort");
    EXPECT_EQ(words([&] { communicator.start(one_, one_, nullptr); }), "NCCL: the link was aborted.");
    EXPECT_FALSE(communicator.wait([] {}, [] { return true; }, never_));
  }
  // Its destructor has nothing to leave.
  EXPECT_EQ(nccl_.calls.back(), "abort");
}

TEST_F(NcclCommunicatorTest, SaysWhatNcclSaysAndAborts) {
  NcclCommunicator communicator(kApi, {}, 0, 2, never_);
  communicator.start(one_, one_, nullptr);
  nccl_.after = kRemoteError;
  EXPECT_EQ(words([&] { communicator.wait([] {}, [] { return true; }, never_); }), "NCCL: remote error (a cable)");
  EXPECT_EQ(nccl_.calls.back(), "abort");

  nccl_ = {};
  nccl_.init = kInvalidUsage;
  EXPECT_EQ(words([&] { made(); }), "NCCL: invalid usage (a cable)");
}

TEST_F(NcclCommunicatorTest, ClosesAGroupThatFailsHalfway) {
  NcclCommunicator communicator(kApi, {}, 0, 2, never_);
  nccl_.calls.clear();
  nccl_.send = kInvalidUsage;
  EXPECT_EQ(words([&] { communicator.start({one_[0], one_[0]}, {}, nullptr); }), "NCCL: invalid usage (a cable)");
  EXPECT_THAT(nccl_.calls, ElementsAre("group", "send 8 to 1", "end", "abort"));
}

TEST_F(NcclCommunicatorTest, AbortsWhereTheOthersDoNotLeave) {
  {
    NcclCommunicator communicator(kApi, {}, 0, 2, never_);
    nccl_.after = kRemoteError;
  }
  EXPECT_THAT(nccl_.calls, ElementsAre("init", "finalize", "abort"));
}

}  // namespace
}  // namespace capstan::accelerators
