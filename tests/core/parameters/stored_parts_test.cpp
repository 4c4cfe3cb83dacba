#include "core/parameters/stored_parts.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "tests/core/memory/fake_store.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A part of 10 elements, 6 in one buffer and 4 in another, each behind 64 bytes of something else.
std::vector<std::vector<StoredExtent>> extents() { return {{{0, 64, nullptr, 0, 6}, {1, 64, nullptr, 6, 4}}, {}}; }

struct Stored {
  Stored() : device(fake.device()) {
    for (int i = 0; i < 2; ++i) device->add_buffer(4096, "parameters of tile " + std::to_string(i));
  }
  FakeStore fake;
  std::unique_ptr<OffloadDevice> device;
};

TEST(StoredParts, ComeBackFromSeveralBuffers) {
  Stored stored;
  StoredParts parts(*stored.device, extents());
  parts.write(0, at::arange(10, at::kFloat));
  const at::Tensor first = at::zeros({10}), second = at::zeros({10});
  const auto one = parts.read(0, first), two = parts.read(0, second);
  parts.wait(two);
  parts.wait(one);
  EXPECT_TRUE(first.equal(at::arange(10, at::kFloat)));
  EXPECT_TRUE(second.equal(first));
}

TEST(StoredParts, OfNoElementsNeedNoTransfer) {
  Stored stored;
  StoredParts parts(*stored.device, extents());
  parts.wait(parts.read(1, at::zeros({0})));
  EXPECT_TRUE(stored.fake.moves.empty());
}

TEST(StoredGradients, AddUpOverMicroBatches) {
  Stored stored;
  StoredGradients gradients(*stored.device, at::kFloat, extents());
  at::Tensor values = at::full({10}, 2, at::kFloat);
  gradients.keep(0, values, /*add=*/false);
  values.fill_(3);
  gradients.keep(0, values, /*add=*/true);
  EXPECT_TRUE(values.eq(5).all().item<bool>()) << "the sum is the caller's too";
  gradients.settle();
  const at::Tensor read = at::zeros({10});
  gradients.read(0, read);
  EXPECT_TRUE(read.eq(5).all().item<bool>());
  values.fill_(1);
  gradients.keep(0, values, /*add=*/false);
  gradients.settle();
  gradients.read(0, read);
  EXPECT_TRUE(read.eq(1).all().item<bool>());
}

TEST(StoredGradients, PassThroughALittleMemoryHoweverLargeTheyAre) {
  constexpr std::int64_t kElements = 3'000'000;
  FakeStore fake;
  const auto device = fake.device();
  device->add_buffer(kElements * 4, "gradients");
  StoredGradients gradients(*device, at::kFloat, {{{0, 0, nullptr, 0, kElements}}});
  const at::Tensor values = at::arange(kElements, at::kFloat);
  gradients.keep(0, values.clone(), /*add=*/false);
  gradients.keep(0, values.clone(), /*add=*/true);
  gradients.settle();
  const at::Tensor read = at::zeros({kElements});
  gradients.read(0, read);
  EXPECT_TRUE(read.equal(values + values));
}

TEST(StoredGradients, StayInMemoryWhereTheirStatesDo) {
  Stored stored;
  std::vector<float> memory(10, -1);
  StoredGradients gradients(*stored.device, at::kFloat, {{{0, 0, reinterpret_cast<std::byte*>(memory.data()), 0, 10}}});
  at::Tensor values = at::arange(10, at::kFloat);
  gradients.keep(0, values, /*add=*/false);
  gradients.keep(0, values, /*add=*/true);
  EXPECT_EQ(memory[9], 18);
  EXPECT_EQ(values[9].item<float>(), 18);
  EXPECT_TRUE(stored.fake.moves.empty());
}

TEST(StoredGradients, SayAtTheEndOfBackwardThatAWriteFailed) {
  Stored stored;
  StoredGradients gradients(*stored.device, at::kFloat, extents());
  stored.fake.failing = {1};
  gradients.keep(0, at::zeros({10}), /*add=*/false);
  EXPECT_THAT([&] { gradients.settle(); },
              ThrowsMessage<RuntimeFault>(HasSubstr("These were parameters of tile 0, bytes 64 to 88.")));
}

}  // namespace
}  // namespace capstan
