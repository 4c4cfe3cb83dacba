// The emulated device finds each kind of fault, at once, and names it; the same work in order has none.

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "capstan/sdk/on_cpu/emulated_device.hpp"
#include "tests/sdk/emulated/face.hpp"

namespace capstan::test {
namespace {

class EmulatedFaultsDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    setenv("CAPSTAN_EMULATED_ABORT", "1", 1);  // a fault ends the process
  }
};

c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(device().type()); }

/// Work on a stream beside the default one, while one lives.
class OnSideStream {
 public:
  OnSideStream() : stream_(guard().getNewStream(device())), before_(guard().exchangeStream(stream_)) {}
  ~OnSideStream() { guard().exchangeStream(before_); }
  OnSideStream(const OnSideStream&) = delete;
  c10::Stream stream() const { return stream_; }

 private:
  c10::Stream stream_, before_;
};

/// Values, and their sum, which a side stream makes and nobody waits for.
std::pair<torch::Tensor, torch::Tensor> read_on_side_stream() {
  const auto values = torch::ones({8}, device());
  guard().synchronizeStream(guard().getStream(device()));
  const OnSideStream side;
  return {values, values.sum()};
}

TEST_F(EmulatedFaultsDeathTest, HostCodeThatReadsDeviceMemory) {
  EXPECT_DEATH(
      {
        const auto values = torch::ones({4}, device());
        std::printf("%f", static_cast<double>(*values.data_ptr<float>()));
      },
      "emulated device: host code touched device memory at .*: block of 16 B, byte 0");
}

TEST_F(EmulatedFaultsDeathTest, AReadOfACopyThatNobodyHasWaitedFor) {
  const auto copied = [] {
    return torch::ones({1024}, device()).to(torch::kCPU, torch::kFloat, /*non_blocking=*/true);
  };
  EXPECT_DEATH({ std::printf("%f", static_cast<double>(copied().data_ptr<float>()[0])); },
               "host code touched pinned memory before it waited for the copy");
  const auto waited = copied();
  guard().synchronizeStream(guard().getStream(device()));
  EXPECT_EQ(waited.data_ptr<float>()[0], 1);
}

TEST_F(EmulatedFaultsDeathTest, APinnedBufferThatIsWrittenUnderItsCopy) {
  EXPECT_DEATH(
      {
        auto host = torch::ones({1024}).pin_memory();
        const auto there = host.to(device(), /*non_blocking=*/true);
        host.data_ptr<float>()[0] = 2;
      },
      "host code touched pinned memory before it waited for the copy");
}

TEST_F(EmulatedFaultsDeathTest, AReadThatNothingOrdersBehindAWrite) {
  EXPECT_DEATH(
      {
        auto values = torch::ones({8}, device());
        guard().synchronizeStream(guard().getStream(device()));
        {
          const OnSideStream side;
          values.mul_(2);
        }
        values.sum();
      },
      "race: 'aten::sum.* on stream 0 reads memory that 'aten::mul.* wrote on another stream, and nothing orders them");
}

TEST_F(EmulatedFaultsDeathTest, AWriteThatNothingOrdersBehindARead) {
  EXPECT_DEATH(
      {
        auto values_and_sum = read_on_side_stream();
        values_and_sum.first.mul_(2);
      },
      "race: 'aten::mul.* on stream 0 writes memory that 'aten::sum.* reads on another stream");
}

/// Writes elements [0, 4) on the side stream, then [first, 8) on this one.
void write_both_ends(std::int64_t first) {
  auto values = torch::ones({8}, device());
  guard().synchronizeStream(guard().getStream(device()));
  {
    const OnSideStream side;
    values.narrow(0, 0, 4).mul_(2);
  }
  values.narrow(0, first, 8 - first).mul_(3);
  guard().synchronizeDevice(device().index());
  EXPECT_EQ(values.sum().item<float>(), first * 2 + (8 - first) * 3);
}

TEST_F(EmulatedFaultsDeathTest, PartsOfABlockThatMeet) {
  write_both_ends(4);  // parts that do not are no fault
  EXPECT_DEATH(write_both_ends(3), "race: 'aten::mul.* on stream 0 reads memory that 'aten::mul.* wrote on another");
}

TEST_F(EmulatedFaultsDeathTest, MemoryThatIsFreedUnderUse) {
  EXPECT_DEATH(
      {
        auto values_and_sum = read_on_side_stream();
        values_and_sum.first.reset();
      },
      "race: memory of 32 B is freed while 'aten::sum.*' on another stream may use it");
}

/// A raw kernel, which adds one to the first of some values, or only reads the value.
void run_kernel(const torch::Tensor& values, bool writes, std::int64_t at = 0) {
  const auto& emulated = sdk::kernels_on_cpu::EmulatedDevice::get();
  emulated.kernel_begin("scale.cu:7");
  auto* first = static_cast<volatile float*>(values.data_ptr()) + at;
  const float before = *first;
  if (writes) *first = before + 1;
  emulated.kernel_end();
}

TEST_F(EmulatedFaultsDeathTest, AKernelThatNothingOrdersBehindAWrite) {
  const auto scaled_on_side_stream = [] {
    auto values = torch::ones({8}, device());
    guard().synchronizeStream(guard().getStream(device()));
    const OnSideStream side;
    return values.mul_(2);
  };
  EXPECT_DEATH(run_kernel(scaled_on_side_stream(), /*writes=*/false),
               "race: 'scale.cu:7' on stream 0 reads memory that 'aten::mul.* wrote on another stream");
  EXPECT_DEATH(run_kernel(scaled_on_side_stream(), /*writes=*/true),
               "race: 'scale.cu:7' on stream 0 writes memory that 'aten::mul.* wrote on another stream");
}

TEST_F(EmulatedFaultsDeathTest, AnOperatorThatNothingOrdersBehindAKernel) {
  const auto read_by_kernel = [](bool writes) {
    auto values = torch::ones({8}, device());
    guard().synchronizeStream(guard().getStream(device()));
    const OnSideStream side;
    run_kernel(values, writes);
    return values;
  };
  EXPECT_DEATH(read_by_kernel(true).sum(), "'aten::sum.* on stream 0 reads memory that 'scale.cu:7' wrote");
  EXPECT_DEATH(read_by_kernel(false).mul_(2), "'aten::mul.* on stream 0 writes memory that 'scale.cu:7' reads");
  const auto values = read_by_kernel(false);
  EXPECT_EQ(values.sum().item<float>(), 8);     // two readers need no order
  guard().synchronizeDevice(device().index());  // or the side stream might use what is freed now
}

TEST_F(EmulatedFaultsDeathTest, AKernelThatRunsOverTheEndOfItsBlock) {
  EXPECT_DEATH(run_kernel(torch::ones({1024}, device()), /*writes=*/true, /*at=*/1024),
               "the kernel launched at scale.cu:7 touched device memory at .*: no block");
}

TEST_F(EmulatedFaultsDeathTest, HostCodeBehindAKernelThatHadTheSameMemory) {
  const auto values = torch::ones({4}, device());
  run_kernel(values, /*writes=*/true);
  EXPECT_EQ(values.sum().item<float>(), 5);
  EXPECT_DEATH(std::printf("%f", static_cast<double>(*values.data_ptr<float>())), "host code touched device memory");
}

TEST_F(EmulatedFaultsDeathTest, WorkInOrderHasNone) {
  auto values = torch::ones({8}, device());
  torch::Tensor sum;
  c10::Event ready(device().type()), done(device().type());
  ready.record(guard().getStream(device()));
  {
    const OnSideStream side;
    ready.block(side.stream());
    sum = values.mul_(2).sum();
    done.record(side.stream());
    values.record_stream(side.stream());
  }
  done.block(guard().getStream(device()));
  EXPECT_EQ(sum.item<float>(), 16);
  EXPECT_EQ(values.add_(1).sum().item<float>(), 24);
}

TEST_F(EmulatedFaultsDeathTest, ValuesThatNobodyWroteAreNoNumbers) {
  EXPECT_TRUE(torch::empty({16}, device()).isnan().all().item<bool>());
  EXPECT_TRUE(torch::empty({16}, torch::TensorOptions(torch::kBFloat16).device(device())).isnan().all().item<bool>());
}

}  // namespace
}  // namespace capstan::test
