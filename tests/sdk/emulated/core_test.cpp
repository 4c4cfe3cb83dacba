// Parts of core on the emulated device, without an engine.

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/comm/staged_transport.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/parameters/early_gradients.hpp"
#include "core/zero/code_operators.hpp"
#include "tests/sdk/emulated/face.hpp"

namespace capstan {
namespace {

/// An accelerator with the functions that EarlyGradients calls.
class Device final : public Accelerator {
 public:
  at::Device device() const override { return test::device(); }
  void bind_thread() const override { guard_.setDevice(device()); }
  std::function<void()> after_this() const override {
    const auto event = std::make_shared<c10::Event>(device().type());
    event->record(guard_.getStream(device()));
    return [this, event] { event->block(guard_.getStream(device())); };
  }
  at::Tensor allocate(at::IntArrayRef, at::ScalarType) const override { return {}; }
  void copy(at::Tensor&, const at::Tensor&) const override {}
  at::Tensor upload(const at::Tensor& tensor) const override { return tensor; }
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) const override { return tensors; }
  std::unique_ptr<DeviceEvent> record() const override { return nullptr; }
  void* stream() const override { return nullptr; }
  DeviceMemory memory() const override { return {}; }
  DeviceLinks* links() const override { return nullptr; }

 private:
  c10::impl::VirtualGuardImpl guard_{test::device().type()};
};

class EarlyGradientsTest : public testing::Test {
 protected:
  Device device_;
  EarlyGradients early_{device_, 3};
  torch::Tensor on_device(const torch::Tensor& values) { return values.to(test::device()); }
};

TEST_F(EarlyGradientsTest, AreTheValuesThatTheDeviceHas) {
  const torch::Tensor large = torch::randn({3000, 3000}), small = torch::randn({5}).to(torch::kBFloat16);
  const torch::Tensor first = on_device(large), second = on_device(small);
  early_.start(0, first);
  early_.start(2, second);
  early_.close();
  EXPECT_TRUE(torch::equal(early_.take(0, first), large.view({-1})));
  EXPECT_TRUE(torch::equal(early_.take(2, second), small));
  EXPECT_FALSE(early_.take(1, first).defined());
  early_.drop();
  EXPECT_FALSE(early_.take(0, first).defined());
}

TEST_F(EarlyGradientsTest, AreCopiedAgainWhereMoreIsAdded) {
  torch::Tensor gradient = on_device(torch::ones({100}));
  early_.start(0, gradient);
  early_.take(1, gradient);  // waits, or the addition would be a race
  gradient.add_(1);
  early_.start(0, gradient);
  early_.close();
  EXPECT_TRUE(torch::equal(early_.take(0, gradient), torch::full({100}, 2.0)));
}

TEST_F(EarlyGradientsTest, AreNoneOfAGradientThatHasChangedOrIsAnother) {
  torch::Tensor gradient = on_device(torch::ones({100}));
  early_.start(0, gradient);
  early_.close();
  EXPECT_TRUE(early_.take(0, gradient).defined());
  EXPECT_FALSE(early_.take(0, gradient.clone()).defined());
  gradient.mul_(2);
  EXPECT_FALSE(early_.take(0, gradient).defined());
}

/// A way back to this process, which copies when it is waited for, as late as a network.
class Loop final : public Transport {
 public:
  struct Copies final : Exchange {
    Copies(const std::vector<Message>& send, const std::vector<Message>& receive) : from(send), to(receive) {}
    bool wait() override {
      for (std::size_t i = 0; i < from.size(); ++i) at::Tensor(to[i].values).copy_(from[i].values);
      return !aborted;
    }
    void abort() override { aborted = true; }
    std::vector<Message> from, to;
    bool aborted = false;
  };
  std::unique_ptr<Exchange> start(std::uint32_t, const std::vector<Message>& send,
                                  const std::vector<Message>& receive) override {
    for (const auto* messages : {&send, &receive}) {
      for (const Message& message : *messages) EXPECT_TRUE(message.values.is_cpu());
    }
    return std::make_unique<Copies>(send, receive);
  }
  void publish(const std::string&, const std::string&) override {}
  std::string read(const std::string& key, std::chrono::milliseconds) override { return key; }
  std::shared_ptr<Transport> duplicate_for_thread(const std::string&) override { return nullptr; }
  std::shared_ptr<Transport> for_thread() override { return nullptr; }
};

TEST(StagedTransport, SendsTensorsOfADeviceThroughHostMemory) {
  const auto transport = through_host_copies(std::make_shared<Loop>());
  const at::Tensor values = at::randn({300}), of_host = at::randn({4}), host_arrives = at::zeros({4});
  at::Tensor sent = values.to(test::device());
  const at::Tensor arrives = at::zeros({300}, sent.options());
  const auto exchange = transport->start(1, {{1, sent}, {1, of_host}}, {{1, arrives}, {1, host_arrives}});
  sent.zero_();  // what is under way keeps its values
  EXPECT_TRUE(exchange->wait());
  EXPECT_TRUE(at::equal(arrives.cpu(), values));
  EXPECT_TRUE(at::equal(host_arrives, of_host));

  const auto aborted = transport->start(2, {{1, sent}}, {{1, arrives}});
  aborted->abort();
  EXPECT_FALSE(aborted->wait());
  EXPECT_TRUE(at::equal(arrives.cpu(), values));
  EXPECT_EQ(transport->read("text", std::chrono::milliseconds(1)), "text");
}

TEST(Operators, OfCodesHaveTheCpusBitsOnADevice) {
  const at::Tensor values = at::randn({4000}) * 3;
  const auto there = [](const at::Tensor& tensor) { return tensor.to(test::device()); };
  for (const int bits : {8, 4}) {
    const BlockFormat format{bits, values.numel(), 96};
    const at::Tensor scales = at::zeros({format.blocks()}), codes = at::zeros({format.code_bytes()}, at::kByte);
    const at::Tensor scales_there = there(scales), codes_there = there(codes), back = there(at::zeros_like(values));
    quantize_blocks(format, values, scales, codes);
    quantize_blocks(format, there(values), scales_there, codes_there);
    EXPECT_TRUE(at::equal(scales_there.cpu(), scales));
    EXPECT_TRUE(at::equal(codes_there.cpu(), codes));
    at::Tensor expected = at::zeros_like(values);
    dequantize_blocks(format, scales, codes, /*add=*/false, expected);
    dequantize_blocks(format, scales_there, codes_there, /*add=*/false, back);
    EXPECT_TRUE(at::equal(back.cpu(), expected));
  }
  const Range part{100, values.numel()};
  const CodeFormat format{64, 4, true};
  const std::int64_t groups = format.groups_in(part);
  const PartScales scales{format, at::rand({groups}), at::randint(-3, 3, {groups}, at::kInt)};
  const at::Tensor bytes = encode_part(scales, part, values), bytes_there = encode_part(scales, part, there(values));
  EXPECT_EQ(bytes_there.device(), test::device());
  EXPECT_TRUE(at::equal(bytes_there.cpu(), bytes));
  at::Tensor expected = at::zeros_like(values);
  const at::Tensor back = there(expected);
  decode_part(format, part, bytes, expected);
  decode_part(format, part, bytes_there, back);
  EXPECT_TRUE(at::equal(back.cpu(), expected));
}

TEST(Operators, SumSquaresOnADevice) {
  const at::Tensor small = at::randn({7}), large = at::randn({100'000}).to(at::kBFloat16);
  const at::Tensor small_there = small.to(test::device()), large_there = large.to(test::device());
  const auto here = sums_of_squares({&small, &large}), there = sums_of_squares({&small_there, &large_there});
  ASSERT_EQ(there.size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i].exact, here[i].exact, 1e-13 * here[i].exact);
  const double total = sum_of_squares({&small, &large}).exact;
  EXPECT_NEAR(sum_of_squares({&small_there, &large_there}).exact, total, 1e-12 * total);
}

}  // namespace
}  // namespace capstan
