#include "core/comm/host_memory.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <future>

#include "core/comm/neighbour.hpp"
#include "core/errors.hpp"
#include "tests/core/comm/texts.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

/// Two transports of this process, which is its own neighbour.
std::pair<std::shared_ptr<Transport>, std::shared_ptr<Transport>> transports() {
  const auto texts = std::make_shared<Texts>();
  auto other = std::async([&] { return with_host_memory(texts, 1, 2, seconds(60)); });
  auto own = with_host_memory(texts, 0, 2, seconds(60));
  return {std::move(own), other.get()};
}

/// Either of two exchanges that are aborted may see first that the other is.
bool ended_well(std::future<bool>& wait) {
  try {
    return wait.get();
  } catch (const PeerLost&) {
    return false;
  }
}

struct HostMemory : testing::Test {
  std::shared_ptr<Transport> first, second;
  HostMemory() { std::tie(first, second) = transports(); }
};

TEST_F(HostMemory, CarriesMessagesOfEveryLength) {
  const auto longest = static_cast<std::int64_t>(3 * (std::int64_t{4} << 20) + 7);
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{4095}, std::int64_t{4096}, std::int64_t{4097}, std::int64_t{4} << 20, longest}) {
    const at::Tensor values = at::arange(bytes, at::kLong).to(at::kByte), back = values.flip(0);
    const at::Tensor got = at::zeros({bytes}, at::kByte), got_back = at::zeros({bytes}, at::kByte);
    auto other = std::async([&] { return second->start(3, {{0, back}}, {{0, got}})->wait(); });
    EXPECT_TRUE(first->start(3, {{1, values}}, {{1, got_back}})->wait());
    EXPECT_TRUE(other.get());
    EXPECT_TRUE(at::equal(got, values)) << bytes;
    EXPECT_TRUE(at::equal(got_back, back)) << bytes;
  }
}

TEST_F(HostMemory, TellsMessagesOfOneExchangeApart) {
  std::vector<Message> send, receive;
  for (int i = 0; i < 300; ++i) {
    // Long and short ones, and empty ones, which do not travel.
    send.push_back({1, at::full({i % 3 == 0 ? 2000 : i % 7}, 1.0 * i)});
    receive.push_back({0, at::empty_like(send.back().values)});
  }
  auto other = std::async([&] { return second->start(9, {}, receive)->wait(); });
  EXPECT_TRUE(first->start(9, send, {})->wait());
  EXPECT_TRUE(other.get());
  for (std::size_t i = 0; i < send.size(); ++i) EXPECT_TRUE(at::equal(send[i].values, receive[i].values)) << i;
}

TEST_F(HostMemory, MessagesOfDifferentCallsNeverMeet) {
  for (const std::int64_t count : {3, 9000}) {
    const at::Tensor values = at::full({count}, 1.0), got = at::zeros({count});
    const auto one = first->start(1, {{1, values}}, {});
    const auto another = second->start(2, {}, {{0, got}});
    auto sending = std::async([&] { return one->wait(); });
    auto receiving = std::async([&] { return another->wait(); });
    EXPECT_EQ(receiving.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    EXPECT_EQ(sending.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
    one->abort();
    another->abort();
    EXPECT_FALSE(ended_well(sending) || ended_well(receiving));
    EXPECT_TRUE(at::equal(got, at::zeros({count})));
    std::tie(first, second) = transports();
  }
}

TEST_F(HostMemory, MoreShortMessagesThanASocketHolds) {
  std::vector<Message> send, receive;
  for (int i = 0; i < 500; ++i) {
    send.push_back({1, at::full({1000}, 1.0 * i)});
    receive.push_back({0, at::zeros({1000})});
  }
  auto sending = std::async([&] { return first->start(1, send, {})->wait(); });
  // The other side begins when nothing more goes in.
  EXPECT_EQ(sending.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_TRUE(second->start(1, {}, receive)->wait());
  EXPECT_TRUE(sending.get());
  for (std::size_t i = 0; i < send.size(); ++i) EXPECT_TRUE(at::equal(send[i].values, receive[i].values)) << i;
}

TEST_F(HostMemory, AnAbortEndsBothSides) {
  const at::Tensor values = at::zeros({9000});
  const auto exchange = first->start(1, {}, {{1, values}});
  auto waiting = std::async([&] { return exchange->wait(); });
  auto other = std::async([&] { return second->start(2, {}, {{0, values.clone()}})->wait(); });
  exchange->abort();
  EXPECT_FALSE(waiting.get());
  EXPECT_THROW(other.get(), PeerLost);
}

TEST_F(HostMemory, WhatWasOfferedByOneWhoGaveUpIsNotBelieved) {
  const at::Tensor values = at::zeros({9000});
  const auto exchange = first->start(1, {{1, values}}, {});
  auto waiting = std::async([&] { return exchange->wait(); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  exchange->abort();
  EXPECT_FALSE(waiting.get());
  // The offer is in the socket still, and the memory can still be read.
  EXPECT_THROW(second->start(1, {}, {{0, values.clone()}})->wait(), PeerLost);
}

TEST_F(HostMemory, ADuplicatesMessagesAreItsOwn) {
  auto other = std::async([&] { return second->duplicate_for_thread("saving"); });
  const auto first_duplicate = first->duplicate_for_thread("saving"), second_duplicate = other.get();
  const at::Tensor values = at::full({2}, 5.0), got = at::zeros({2});
  auto sending = std::async([&] { return first_duplicate->start(1, {{1, values}}, {})->wait(); });
  const auto exchange = second->start(1, {}, {{0, got}});
  auto waiting = std::async([&] { return exchange->wait(); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  exchange->abort();
  EXPECT_FALSE(waiting.get());
  EXPECT_TRUE(second_duplicate->start(1, {}, {{0, got}})->wait());
  EXPECT_TRUE(sending.get());
  EXPECT_TRUE(at::equal(got, values));
}

/// From here on this thread may not read the memory of processes, as in a container whose rules forbid it.
void forbid_reading() {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(rules), rules};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(HostMemoryThatIsForbidden, IsLeftAloneByBoth) {
  const auto texts = std::make_shared<Texts>();
  auto other = std::async(std::launch::async, [&] {
    forbid_reading();
    return with_host_memory(texts, 1, 2, seconds(60));
  });
  testing::internal::CaptureStderr();
  const auto first = with_host_memory(texts, 0, 2, seconds(60));
  const auto second = other.get();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the memory of rank 0 on this host cannot be read (Operation not permitted): messages to and "
                        "from it go over TCP"));
  const at::Tensor values = at::zeros({3});
  EXPECT_THROW(first->start(1, {{1, values}}, {}), WentOverTheNetwork);
  EXPECT_THROW(second->start(1, {}, {{0, values}}), WentOverTheNetwork);
}

/// In processes, some or all of which do without: each pair finds its way.
void expect_gathers(const std::vector<int>& over_tcp) {
  test::expect_on_ranks(
      3,
      [](Communicator& communicator) {
        for (const std::int64_t count : {3, 5000, 3'000'000}) {
          std::vector<at::Tensor> parts;
          for (int rank = 0; rank < 3; ++rank)
            parts.push_back(at::full({count + rank}, rank == communicator.rank() ? rank + 1.0 : 0.0));
          communicator.all_gather("gather", parts);
          for (int rank = 0; rank < 3; ++rank) {
            EXPECT_TRUE(at::equal(parts[static_cast<std::size_t>(rank)], at::full({count + rank}, rank + 1.0)));
          }
        }
      },
      {.over_tcp = over_tcp});
}

TEST(HostMemoryOfProcesses, IsUsedByAll) { expect_gathers({}); }
TEST(HostMemoryOfProcesses, IsUsedByTwoOfThree) { expect_gathers({1}); }
TEST(HostMemoryOfProcesses, IsUsedByNone) { expect_gathers({0, 1, 2}); }

TEST(HostMemoryOfProcesses, RefusesAnotherWord) {
  ASSERT_EQ(setenv("CAPSTAN_HOST_MEMORY", "yes", 1), 0);
  Texts texts;
  try {
    meet_neighbours(texts, 0, 1, seconds(1));
    ADD_FAILURE();
  } catch (const RuntimeFault& fault) {
    EXPECT_STREQ(fault.what(), "CAPSTAN_HOST_MEMORY is 'yes'; 'on' (the default) or 'off' is meant.");
  }
  unsetenv("CAPSTAN_HOST_MEMORY");
}

TEST(HostMemoryOfProcesses, OneThatDoesNotAnswerIsNamedWithAWayOut) {
  Texts texts;
  // Ranks 1 and 2 have told where they are, and never call.
  auto others = std::async([&] {
    const std::string card = texts.read("neighbour/0", seconds(60));
    for (const char* key : {"neighbour/1", "neighbour/2"}) texts.publish(key, card);
  });
  try {
    meet_neighbours(texts, 0, 3, std::chrono::milliseconds(300));
    ADD_FAILURE();
  } catch (const RuntimeFault& fault) {
    EXPECT_THAT(fault.what(),
                HasSubstr("rank 0: cannot connect to the processes of this host: no answer of rank 1, rank 2. "
                          "CAPSTAN_HOST_MEMORY=off makes them exchange over TCP."));
  }
}

}  // namespace
}  // namespace capstan
