#include "core/memory/offload_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "core/errors.hpp"
#include "tests/core/memory/fake_store.hpp"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Range = OffloadDevice::Range;

TEST(OffloadDevice, MovesRangesOfABuffer) {
  FakeStore fake;
  const auto device = fake.device();
  const std::uint64_t buffer = device->add_buffer(100, "things");
  std::array<char, 8> from{'o', 'f', 'f', 'l', 'o', 'a', 'd', '!'}, to{};
  const Range write{buffer, 40, 8, from.data(), true}, read{buffer, 44, 4, to.data(), false};
  const auto first = device->start({&write, 1});
  const auto second = device->start({&read, 1});
  device->wait(second);
  EXPECT_EQ(std::string(to.data(), 4), "oad!");
  device->wait(first);
  device->wait(first);  // done stays done
  const OffloadTraffic traffic = device->traffic();
  EXPECT_EQ(traffic.written_bytes, 8u);
  EXPECT_EQ(traffic.read_bytes, 4u);
  EXPECT_EQ(traffic.transfers, 2u);
}

TEST(OffloadDevice, SaysWhatWasLostWheneverItIsAsked) {
  FakeStore fake;
  const auto device = fake.device();
  const std::uint64_t buffer = device->add_buffer(100, "optimizer states of tile 3");
  std::array<char, 8> memory{};
  fake.failing.insert(1);
  const Range read{buffer, 16, 8, memory.data(), false};
  const auto ticket = device->start({&read, 1});
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT([&] { device->wait(ticket); },
                ThrowsMessage<RuntimeFault>(AllOf(HasSubstr("offload 'fake': the fake disk is broken"),
                                                  HasSubstr("These were optimizer states of tile 3, bytes 16 to 24."),
                                                  HasSubstr("The last checkpoint is as it was: resume from it."))));
  }
  EXPECT_TRUE(device->ended(ticket));
}

TEST(OffloadDevice, GivesUpWhatDoesNotEndAndTouchesTheComponentNoMore) {
  FakeStore fake;
  std::array<char, 8> memory{};
  {
    const auto device = fake.device(std::chrono::milliseconds(50));
    const std::uint64_t buffer = device->add_buffer(100, "things");
    fake.stuck = true;
    const Range write{buffer, 0, 8, memory.data(), true};
    device->start({&write, 1});
    const auto ticket = device->start({&write, 1});
    EXPECT_THAT([&] { device->wait(ticket); },
                ThrowsMessage<RuntimeFault>(AllOf(HasSubstr("2 transfers of 16 B in flight for 0 s"),
                                                  HasSubstr("Is the storage still there?"))));
    fake.calls = 0;
  }
  EXPECT_EQ(fake.calls, 0) << "neither asked nor destroyed";
}

TEST(OffloadDevice, WaitsForWhatIsUnderWayBeforeItEnds) {
  FakeStore fake;
  std::array<char, 8> memory{};
  {
    const auto device = fake.device();
    const Range write{device->add_buffer(100, "things"), 0, 8, memory.data(), true};
    device->start({&write, 1});
    device->start({&write, 1});
  }
  EXPECT_EQ(fake.under_way(), 0u);
  EXPECT_EQ(fake.destroyed, 1);
}

TEST(OffloadDevice, RefusesAnAlignmentThatIsNone) {
  FakeStore fake;
  fake.alignment = 48;
  EXPECT_THAT([&] { fake.device(); }, ThrowsMessage<PluginError>(HasSubstr("the alignment is 48; it must be a power of "
                                                                           "two. Tell the plugin's author.")));
}

TEST(OffloadDevice, ServesSeveralThreads) {
  FakeStore fake;
  const auto device = fake.device();
  const std::uint64_t buffer = device->add_buffer(4000, "things");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto offset = static_cast<std::uint64_t>(t) * 1000;
      for (char round = 1; round < 100; ++round) {
        std::vector<char> from(1000, round), to(1000);
        const Range write{buffer, offset, 1000, from.data(), true}, read{buffer, offset, 1000, to.data(), false};
        const auto writing = device->start({&write, 1});
        device->wait(device->start({&read, 1}));
        EXPECT_EQ(from, to);
        device->wait(writing);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace capstan
