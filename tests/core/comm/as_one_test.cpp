#include "core/comm/as_one.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "core/errors.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Unspoken {};

TEST(AsOne, ThrowsOnAllRanksWhatOneThrows) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    const auto on_rank_1 = [&](const std::function<void()>& fails) {
      as_one(communicator, "test: together", [&] {
        if (communicator.rank() == 1) fails();
      });
    };
    const auto out_of_range = [&] { on_rank_1([] { throw std::out_of_range("no such row"); }); };
    const auto no_memory = [&] { on_rank_1([] { throw std::bad_alloc(); }); };
    const auto libtorch = [&] { on_rank_1([] { TORCH_CHECK(false, "sizes differ"); }); };
    const auto unspoken = [&] { on_rank_1([] { throw Unspoken(); }); };
    if (communicator.rank() == 1) {
      EXPECT_THROW(out_of_range(), std::out_of_range);
      EXPECT_THROW(no_memory(), std::bad_alloc);
      EXPECT_THROW(libtorch(), c10::Error);
      EXPECT_THROW(unspoken(), Unspoken);
    } else {
      EXPECT_THAT(out_of_range, ThrowsMessage<RuntimeFault>("rank 1: no such row"));
      EXPECT_THAT(no_memory, ThrowsMessage<RuntimeFault>("rank 1: std::bad_alloc"));
      EXPECT_THAT(libtorch, ThrowsMessage<RuntimeFault>("rank 1: sizes differ"));
      EXPECT_THAT(unspoken, ThrowsMessage<RuntimeFault>("rank 1: it failed, and does not say why."));
    }
    on_rank_1([] {});
  });
}

TEST(AsOne, InASingleProcessIsTheWorkAlone) {
  int runs = 0;
  as_one(*Communicator::alone(), "alone", [&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_THAT([] { as_one(*Communicator::alone(), "alone", [] { throw ConfigError("not so"); }); },
              ThrowsMessage<ConfigError>("not so"));
}

}  // namespace
}  // namespace capstan
