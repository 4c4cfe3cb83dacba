#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/sdk/device.hpp"

namespace capstan::sdk {
namespace {

using ::testing::ThrowsMessage;

capstan_tensor handle(const at::Tensor& tensor) {
  return reinterpret_cast<capstan_tensor>(const_cast<at::Tensor*>(&tensor));
}

/// A slot of 5 elements with states of three types, and one that it does not have.
class SlotOfBytes : public ::testing::Test {
 protected:
  const at::Tensor codes_ = at::arange(5, at::kByte), signed_ = at::arange(-5, 0, at::kChar), scale_ = at::zeros({3});
  const capstan_tensor states_[4] = {handle(codes_), handle(signed_), handle(scale_), nullptr};
  const capstan_slot raw_ = [this] {
    capstan_slot raw{};
    raw.struct_size = sizeof raw;
    raw.name = {"w", 1};
    raw.numel = 5;
    raw.state = states_;
    raw.state_count = 4;
    return raw;
  }();
  const Slot slot_{&raw_, "Lion8bit"};
};

TEST_F(SlotOfBytes, ShowsStatesInTheirTypes) {
  EXPECT_EQ(slot_.bytes(0)[4], 4);
  EXPECT_EQ(slot_.signed_bytes(1)[0], -5);
  EXPECT_EQ(slot_.state(2).dtype, Dtype::kFloat32);
  EXPECT_EQ(values_of(states_[0]).dtype, Dtype::kUInt8);
  EXPECT_EQ(values_of(states_[1]).dtype, Dtype::kInt8);
  EXPECT_FALSE(values_of(states_[1]).is_float());
  EXPECT_TRUE(slot_.has_state(0));
  EXPECT_FALSE(slot_.has_state(3));
  EXPECT_EQ(slot_.blocks(2), 3u);
  EXPECT_EQ(slot_.blocks(8), 1u);
}

TEST_F(SlotOfBytes, TellsTheRoleOfItsParameter) {
  capstan_slot raw = raw_;
  EXPECT_EQ(slot_.role(), Role::kOther);
  raw.role = CAPSTAN_PARAM_HEAD;
  EXPECT_EQ(Slot(&raw, "Lion8bit").role(), Role::kHead);
}

TEST(Tensors, HaveAShapeAndANumberOfElements) {
  const at::Tensor matrix = at::zeros({3, 4}), scalar = at::zeros({});
  EXPECT_EQ(numel_of(handle(matrix)), 12);
  EXPECT_THAT(shape_of(handle(matrix)), ::testing::ElementsAre(3, 4));
  EXPECT_EQ(numel_of(handle(scalar)), 1);
  EXPECT_TRUE(shape_of(handle(scalar)).empty());
}

TEST_F(SlotOfBytes, NamesAStateOfAnotherType) {
  EXPECT_THAT([&] { slot_.bytes(1); },
              ThrowsMessage<Error>("parameter 'w': Lion8bit keeps state 1 in uint8 in host memory; this one is int8."));
  EXPECT_THAT(
      [&] { slot_.signed_bytes(2); },
      ThrowsMessage<Error>("parameter 'w': Lion8bit keeps state 2 in int8 in host memory; this one is float32."));
  EXPECT_THAT([&] { slot_.state(0); },
              ThrowsMessage<Error>("parameter 'w': Lion8bit takes float32, bfloat16 or float16 states in host memory; "
                                   "state 0 is uint8."));
  EXPECT_THAT([&] { DeviceSlot(slot_).bytes(0); },
              ThrowsMessage<Error>("parameter 'w': state 0 must be uint8 in the memory of a device."));
  EXPECT_THAT([&] { DeviceSlot(slot_).signed_bytes(1); },
              ThrowsMessage<Error>("parameter 'w': state 1 must be int8 in the memory of a device."));
}

TEST_F(SlotOfBytes, NamesAStateThatIsNotThere) {
  EXPECT_THAT([&] { slot_.has_state(4); },
              ThrowsMessage<Error>("parameter 'w': has no state 4: the manifest of Lion8bit declares 4 for a slot, "
                                   "numbered from 0."));
  EXPECT_THAT([&] { DeviceSlot(slot_).state(3); },
              ThrowsMessage<Error>("parameter 'w': has no state 3: the manifest of Lion8bit leaves it out here. Ask "
                                   "has_state(3) first."));
}

TEST(StepOfAnUpdate, NamesStatesAndTotalsOfTheModelThatAreNotThere) {
  capstan_step raw{};
  raw.struct_size = sizeof raw;
  const double totals[] = {1.5, 2.5};
  const Step without(nullptr, &raw, {}, 0, nullptr);
  EXPECT_THAT([&] { without.model_total(0); },
              ThrowsMessage<Error>("model_total() has numbers in update() alone, and with `measures_model` in the "
                                   "manifest."));
  const char* const text = "state 0 of the model: the manifest declares 0, numbered from 0.";
  EXPECT_THAT([&] { without.model_state(0); }, ThrowsMessage<Error>(text));
  EXPECT_THAT([&] { device_model_state(without, 0); }, ThrowsMessage<Error>(text));
  raw.model_totals = totals;
  EXPECT_EQ(without.model_total(1), 2.5);
}

}  // namespace
}  // namespace capstan::sdk
