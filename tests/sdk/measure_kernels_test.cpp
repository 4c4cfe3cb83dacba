// The kernel that a measuring rule has on a device, run on the CPU in each order of threads: the sums of the rule, an
// element at a time, and the same bits in each order.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#define CAPSTAN_RULES_ON_DEVICE
#include "capstan/sdk/elements.hpp"
#include "tests/sdk/device_array.hpp"
#include "tests/sdk/launch_orders.hpp"

CAPSTAN_RULES

/// Sums: w * g, |s|.
struct MomentMeasure {
  static constexpr int kStates = 1;
  static constexpr int kMeasures = 2;
  float grad_scale;
  template <class V, class Sums>
  CAPSTAN_RULE void operator()(V p, V grad, const V* state, Sums& sums) const {
    sums.add(0, p, grad * grad_scale);
    sums.add(1, abs(state[0]), V(1.0f));
  }
};
CAPSTAN_RULE_KERNEL(MomentMeasure)

CAPSTAN_RULES_END

namespace capstan::testing {
namespace {

using namespace elements;

/// Around a thread's reads, a block of threads and its chunk; more slots than one launch takes.
constexpr std::size_t kCounts[] = {1,    31,  0,  255,    256,    257,    1023,   1024,   1025, 16383, 16384, 16385,
                                   2048, 100, 33, 32'768, 40'001, 49'152, 49'153, 70'000, 5,    6,     7,     8,
                                   9,    10,  11, 12,     13,     14,     15,     16,     17,   18,    19,    20};

struct MeasuredSlot {
  DeviceArray param, grad, state;

  MeasuredSlot(DeviceType type, std::size_t count, std::mt19937& random)
      : param(random_array(DeviceType::kFloat32, count, random)),
        grad(random_array(type, count, random)),
        state(random_array(type, count, random)) {}

  DeviceBlock block() {
    const auto values = [](DeviceArray& array) {
      return DeviceValues{array.data(), static_cast<ElementType>(array.type())};
    };
    DeviceBlock block{static_cast<float*>(param.data()), values(grad), {}, {values(state)}, param.count()};
    return block;
  }
};

TEST(MeasureKernels, AddUpAsTheRuleSays) {
  for (const DeviceType type : kDeviceTypes) {
    std::mt19937 random(7);
    std::vector<MeasuredSlot> slots;
    for (const std::size_t count : kCounts) slots.emplace_back(type, count, random);
    std::vector<DeviceUpdate<MomentMeasure>> updates;
    std::size_t chunks = 0;
    for (MeasuredSlot& slot : slots) {
      updates.push_back({slot.block(), {0.25f + 0.01f * static_cast<float>(updates.size())}});
      chunks += chunks_of(slot.param.count());
    }
    std::vector<double> before;
    in_each_launch_order([&] {
      std::vector<double> scratch(2 * chunks, NAN), sums(2 * slots.size(), NAN);
      ASSERT_EQ(launch_MomentMeasure({updates, nullptr, scratch.data(), sums.data()}), nullptr);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        long double products = 0, magnitudes = 0;
        for (std::size_t k = 0; k < slots[i].param.count(); ++k) {
          const float scaled = slots[i].grad[k] * updates[i].rule.grad_scale;
          products += static_cast<long double>(slots[i].param[k]) * scaled;
          magnitudes += std::fabs(slots[i].state[k]);
        }
        EXPECT_NEAR(sums[2 * i], static_cast<double>(products), 1e-10) << kCounts[i];
        EXPECT_NEAR(sums[2 * i + 1], static_cast<double>(magnitudes), 1e-9) << kCounts[i];
      }
      if (before.empty()) before = sums;
      EXPECT_EQ(sums, before);
    });
  }
}

TEST(MeasureKernels, LeaveEverythingElseAlone) {
  std::mt19937 random(7);
  MeasuredSlot slot(DeviceType::kBFloat16, 20'000, random);
  const DeviceArray param = slot.param, grad = slot.grad, state = slot.state;
  double scratch[4], sums[2];
  ASSERT_EQ(launch_MomentMeasure({{{slot.block(), {1.0f}}}, nullptr, scratch, sums}), nullptr);
  EXPECT_EQ(slot.param, param);
  EXPECT_EQ(slot.grad, grad);
  EXPECT_EQ(slot.state, state);
}

}  // namespace
}  // namespace capstan::testing
