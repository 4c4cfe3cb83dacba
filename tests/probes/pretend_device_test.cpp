// A third party's accelerator, through the SDK, the registry and the engine's side of the table.

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/memory/plugin_accelerator.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::unique_ptr<PluginAccelerator> made(int local_rank = 0, const char* params = R"({"devices": 2, "cable": true})") {
  const PluginIndex plugins = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/tests/probe_plugins", "the test"}});
  Registry registry(plugins);
  return std::make_unique<PluginAccelerator>(
      registry.create("test", "accelerator", "cpu", Json::parse(params), model_host()), local_rank);
}

TEST(PretendDevice, IsTakenByTheProcessOfItsNumber) {
  EXPECT_EQ(made(1)->device(), at::Device("cpu:1"));
  EXPECT_EQ(made(1)->memory().in_use, 1u);
  // A launcher may show each process its own alone.
  EXPECT_EQ(made(3, R"({"devices": 1, "cable": true})")->device(), at::Device("cpu:0"));
}

TEST(PretendDevice, IsRefusedToMoreProcessesThanThereAre) {
  EXPECT_THAT([] { made(3); },
              ThrowsMessage<RuntimeFault>("process 3 of this host has no cpu device of its own: there are 2. Start as "
                                          "many processes as there are devices. --device cpu (capstan.run.device) "
                                          "trains on the CPU."));
}

TEST(PretendDevice, SaysWhyThereIsNone) {
  EXPECT_THAT([] { made(0, R"({"devices": 0, "cable": true})"); },
              ThrowsMessage<RuntimeFault>("no cpu device was found: the drawer is empty. --device cpu "
                                          "(capstan.run.device) trains on the CPU."));
}

TEST(PretendDevice, AllocatesCopiesAndCounts) {
  const auto device = made();
  at::Tensor there = device->allocate({3, 5}, at::kBFloat16);
  const at::Tensor values = at::randn({3, 5});
  device->copy(there, values);

  EXPECT_TRUE(at::equal(there, values.to(at::kBFloat16)));
  EXPECT_EQ(device->memory().peak, 7u);
  EXPECT_EQ(device->memory().total, 1000u);
  EXPECT_EQ(*static_cast<const std::uint32_t*>(device->stream()), 0u);
}

TEST(PretendDevice, TakesATensorOfTheHostWithTheValuesThatItHas) {
  const auto device = made();
  const at::Tensor host = at::randn({4});
  const at::Tensor kept = host.clone();
  const at::Tensor there = device->upload(host);
  host.zero_();

  EXPECT_TRUE(at::equal(there, kept));
  EXPECT_EQ(device->memory().peak, 8u);  // the device counts them from 7 on
}

TEST(PretendDevice, IsCurrentOnAThreadThatWasBoundToIt) {
  const auto device = made();
  const void *before = device->stream(), *bound = nullptr;
  std::thread([&] {
    before = device->stream();
    device->bind_thread();
    bound = device->stream();
  }).join();

  EXPECT_EQ(before, nullptr);
  EXPECT_EQ(bound, device->stream());
}

TEST(PretendDevice, TellsTheTimeBetweenEvents) {
  const auto device = made();
  const auto first = device->record(), second = device->record(), third = device->record();

  EXPECT_EQ(third->milliseconds_since(*first), 2);
  EXPECT_EQ(first->milliseconds_since(*second), -1);
}

TEST(PretendDevice, CarriesMessagesInTheirOrder) {
  const auto device = made();
  const auto link = device->links()->connect(device->links()->new_id(), 0, 1);
  const at::Tensor a = at::randn({4}), b = at::randn({7});
  const at::Tensor to_a = at::zeros_like(a), to_b = at::zeros_like(b);

  const auto exchange = link->start({{0, a}, {0, b}}, {{0, to_a}, {0, to_b}});
  EXPECT_TRUE(exchange->wait());
  EXPECT_EQ(exchange->milliseconds(), 2.5);
  EXPECT_TRUE(at::equal(a, to_a));
  EXPECT_TRUE(at::equal(b, to_b));
}

TEST(PretendDevice, EndsAnExchangeThatIsAborted) {
  const auto device = made();
  const auto exchange = device->links()->connect("the way back", 0, 1)->start({}, {});
  exchange->abort();
  EXPECT_FALSE(exchange->wait());
}

TEST(PretendDevice, SaysThatALinkBroke) {
  const auto device = made(0, R"({"devices": 2, "cable": false})");
  const auto link = device->links()->connect("the way back", 0, 1);
  EXPECT_THAT([&] { link->start({}, {})->wait(); }, ThrowsMessage<LinkLost>(HasSubstr("the cable was cut")));
  const at::Tensor values = at::randn({2});
  EXPECT_THAT(
      [&] {
        link->start({{1, values}}, {{0, values}});
      },
      ThrowsMessage<LinkLost>(HasSubstr("message 0 meets nobody")));
}

TEST(PretendDevice, SaysThatThereIsNoSuchLink) {
  const auto device = made();
  EXPECT_THAT([&] { device->links()->connect("elsewhere", 0, 1); },
              ThrowsMessage<PluginError>("accelerator 'cpu', rank 0: there is no link 'elsewhere'"));
}

TEST(PretendDevice, ItsLinksOutliveTheEngineThatMadeThem) {
  auto device = made();
  auto link = device->links()->connect("the way back", 0, 1);
  device.reset();
  EXPECT_TRUE(link->start({}, {})->wait());
}

}  // namespace
}  // namespace capstan
