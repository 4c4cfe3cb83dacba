#include "core/registry/host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/registry/json_pointer.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr std::string_view kDocument =
    R"({"lr":0.5,"on":true,"betas":[0.9,0.999],"name":"größe","none":null,"a/b":1,"m~n":2,"":3,"deep":{"x":[{"y":4}]}})";

const capstan_host kHost = make_host();

double number(std::string_view pointer) {
  double out = 0;
  call_plugin("test",
              [&](capstan_error* error) { return kHost.json_number(as_str(kDocument), as_str(pointer), &out, error); });
  return out;
}

std::string text(std::string_view pointer) {
  std::string out;
  call_plugin("test", [&](capstan_error* error) {
    return kHost.json_text(
        as_str(kDocument), as_str(pointer), &out,
        [](void* to, capstan_str taken) { *static_cast<std::string*>(to) = std::string(as_view(taken)); }, error);
  });
  return out;
}

std::size_t size(std::string_view pointer) {
  std::size_t out = 99;
  call_plugin("test",
              [&](capstan_error* error) { return kHost.json_size(as_str(kDocument), as_str(pointer), &out, error); });
  return out;
}

TEST(Host, IsThatOfOneProcess) {
  EXPECT_EQ(kHost.struct_size, sizeof(capstan_host));
  EXPECT_EQ(kHost.abi_major, CAPSTAN_ABI_MAJOR);
  EXPECT_EQ(kHost.rank, 0u);
  EXPECT_EQ(kHost.world_size, 1u);
  EXPECT_EQ(kHost.stream(nullptr), nullptr);
}

TEST(Host, ReadsNumbersByPointer) {
  EXPECT_EQ(number("/lr"), 0.5);
  EXPECT_EQ(number("/on"), 1.0);
  EXPECT_EQ(number("/betas/1"), 0.999);
  EXPECT_EQ(number("/a~1b"), 1.0);
  EXPECT_EQ(number("/m~0n"), 2.0);
  EXPECT_EQ(number("/"), 3.0);
  EXPECT_EQ(number("/deep/x/0/y"), 4.0);
}

TEST(Host, ReadsTextAndTheRestAsJson) {
  EXPECT_EQ(text("/name"), "größe");
  EXPECT_EQ(text("/betas"), "[0.9,0.999]");
  EXPECT_EQ(text("/none"), "null");
  EXPECT_EQ(text("/deep"), R"({"x":[{"y":4}]})");
}

TEST(Host, CountsMembers) {
  EXPECT_EQ(size("/betas"), 2u);
  EXPECT_EQ(size("/deep"), 1u);
  EXPECT_EQ(size("/lr"), 1u);
  EXPECT_EQ(size("/none"), 0u);
  EXPECT_EQ(size("/absent"), 0u);
  EXPECT_EQ(size("/betas/7"), 0u);
  EXPECT_EQ(size(""), 9u);
}

TEST(Host, SaysWhichValueIsMissingOrOfAnotherType) {
  EXPECT_THAT([] { number("/absent"); }, ThrowsMessage<PluginError>(StrEq("test: absent: is missing.")));
  EXPECT_THAT([] { number("/betas/01"); }, ThrowsMessage<PluginError>(StrEq("test: betas/01: is missing.")));
  EXPECT_THAT([] { number("/name"); },
              ThrowsMessage<PluginError>(StrEq("test: name: must be a number, got \"größe\".")));
  EXPECT_THAT([] { number("lr"); },
              ThrowsMessage<PluginError>(StrEq("test: 'lr' is not a JSON pointer: it must begin with '/'.")));
  EXPECT_THAT([] { number("/m~2"); },
              ThrowsMessage<PluginError>(StrEq("test: '/m~2' is not a JSON pointer: '~' must be followed by 0 or 1.")));
}

TEST(Host, ReportsADocumentThatIsNotJson) {
  double out = 0;
  EXPECT_THAT(
      [&] {
        call_plugin("test",
                    [&](capstan_error* error) { return kHost.json_number(as_str("{]"), as_str("/a"), &out, error); });
      },
      ThrowsMessage<PluginError>(::testing::StartsWith("test: JSON, line 1, column ")));
}

TEST(Host, TakesErrorsAndTextFromPlugins) {
  capstan_sink sink;
  kHost.sink_write(&sink, as_str("{\"a\":"));
  kHost.sink_write(&sink, as_str("1}"));
  EXPECT_EQ(sink.text, "{\"a\":1}");

  EXPECT_THAT(
      [] {
        call_plugin("optimizer 'Lion'", [](capstan_error* error) {
          kHost.set_error(error, as_str("out of sorts"));
          return CAPSTAN_FAILED;
        });
      },
      ThrowsMessage<PluginError>(StrEq("optimizer 'Lion': out of sorts")));
}

TEST(Host, SaysThatCollectivesNeedAnEngine) {
  EXPECT_THAT(
      [] {
        call_plugin("observer 'X'", [](capstan_error* error) { return kHost.all_reduce_sum(nullptr, nullptr, error); });
      },
      ThrowsMessage<PluginError>(
          StrEq("observer 'X': all_reduce_sum needs a running engine, and this program has none.")));
}

}  // namespace
}  // namespace capstan
