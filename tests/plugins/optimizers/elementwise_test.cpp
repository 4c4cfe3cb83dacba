#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <limits>

#include "tests/plugins/bundled_plugins.hpp"
#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

struct Case {
  std::string plugin, type;
  std::string params = "{}";
};

/// Every optimizer of the build that declares the trait, with the defaults of its parameters.
std::vector<Case> with_defaults() {
  std::vector<Case> cases;
  for (const IndexedPlugin& plugin : bundled_plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (component.has_trait("elementwise")) cases.push_back({plugin.file.string(), component.type});
    }
  }
  return cases;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.type + std::to_string(info.index); }

/// What every optimizer that declares the trait `elementwise` owes.
class Elementwise : public ::testing::TestWithParam<Case> {
 protected:
  static OptimizerUnderTest make() {
    return OptimizerUnderTest(GetParam().plugin, GetParam().type, Json::parse(GetParam().params));
  }
};

// 100,003 elements are enough for several threads and leave an incomplete vector at the end.
TEST_P(Elementwise, GivesTheSameBitsInOneSlotAsInThreeUnevenOnes) {
  constexpr std::int64_t kCount = 100'003;
  const std::int64_t cuts[] = {0, 33, 70'001, kCount};
  auto whole = make(), parts = make();
  const at::Tensor param = noise(kCount, 1);
  whole.add(param.clone());
  for (int i = 0; i < 3; ++i) parts.add(param.slice(0, cuts[i], cuts[i + 1]).clone());
  for (int t = 0; t < 4; ++t) {
    const at::Tensor grad = noise(kCount, 10 + t);
    whole.slot(0).grad = grad;
    for (int i = 0; i < 3; ++i) parts.slot(i).grad = grad.slice(0, cuts[i], cuts[i + 1]).clone();
    whole.update();
    parts.update();
  }
  EXPECT_FALSE(at::equal(whole.slot(0).param, param)) << "it must move at all";
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(whole.slot(0).param.slice(0, cuts[i], cuts[i + 1]), parts.slot(i).param)) << "part " << i;
  }
}

TEST_P(Elementwise, ReadsSixteenBitGradientsAndWritesTheComputeCopy) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    auto narrow = make(), wide = make();
    for (auto* optimizer : {&narrow, &wide}) optimizer->add(noise(3001, 1));
    narrow.slot(0).compute = at::empty({3001}, dtype);
    for (int t = 0; t < 3; ++t) {
      narrow.slot(0).grad = noise(3001, 10 + t).to(dtype);
      wide.slot(0).grad = narrow.slot(0).grad.to(at::kFloat);
      narrow.update(0.5);
      wide.update(0.5);
    }
    EXPECT_TRUE(at::equal(narrow.slot(0).param, wide.slot(0).param)) << dtype;
    EXPECT_TRUE(at::equal(narrow.slot(0).compute, wide.slot(0).param.to(dtype))) << dtype;
    EXPECT_EQ(narrow.slot(0).compute_written, 1);
  }
}

TEST_P(Elementwise, LeavesTheWeightsAtRateZero) {
  if (GetParam().type == "Rprop") return;  // its rate is only where its step sizes start
  auto optimizer = make();
  TestSlot& slot = optimizer.add(noise(100, 1));
  optimizer.group(0)["lr"] = 0.0;
  for (int t = 0; t < 3; ++t) {
    slot.grad = noise(100, 10 + t);
    optimizer.update();
  }
  EXPECT_TRUE(at::equal(slot.param, noise(100, 1)));
}

TEST_P(Elementwise, GoesOnInANewInstanceWithTheStatesOfTheOld) {
  auto whole = make(), first = make(), second = make();
  for (auto* optimizer : {&whole, &first, &second}) optimizer->add(noise(100, 1));
  for (int t = 0; t < 20; ++t) {
    if (t == 10) {
      second.slot(0).param = first.slot(0).param.clone();
      for (std::size_t s = 0; s < first.slot(0).state.size(); ++s) {
        if (first.slot(0).state[s].defined()) second.slot(0).state[s] = first.slot(0).state[s].clone();
      }
    }
    auto& half = t < 10 ? first : second;
    for (auto* optimizer : {&whole, &half}) {
      optimizer->slot(0).grad = noise(100, 10 + t);
      optimizer->update();
    }
  }
  EXPECT_TRUE(at::equal(whole.slot(0).param, second.slot(0).param));
}

TEST_P(Elementwise, TouchesOnlyItsSlots) {
  at::Tensor memory = noise(300, 1);
  auto optimizer = make();
  optimizer.add(memory.slice(0, 101, 199)).grad = noise(98, 2);
  optimizer.update();
  EXPECT_TRUE(at::equal(memory.slice(0, 0, 101), noise(300, 1).slice(0, 0, 101)));
  EXPECT_TRUE(at::equal(memory.slice(0, 199, 300), noise(300, 1).slice(0, 199, 300)));
}

TEST_P(Elementwise, LetsANanThroughWithoutCrashing) {
  auto optimizer = make();
  optimizer.add(noise(20, 1)).grad = noise(20, 2);
  optimizer.slot(0).grad.data_ptr<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  optimizer.update();
  EXPECT_TRUE(std::isfinite(values_of(optimizer.slot(0).param)[4]));
}

TEST_P(Elementwise, LowersAQuadraticLoss) {
  auto optimizer = make();
  TestSlot& slot = optimizer.add(noise(50, 1));
  const double before = slot.param.pow(2).sum().item<double>();
  for (int t = 0; t < 100; ++t) {
    slot.grad = slot.param.clone();
    optimizer.update();
  }
  EXPECT_LT(slot.param.pow(2).sum().item<double>(), before);
}

/// Runs with fewer instruction sets than the machine has; back to all of them at the end.
class OnlyTargets {
 public:
  explicit OnlyTargets(std::int64_t targets) { choose(targets); }
  ~OnlyTargets() { choose(0); }

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(Elementwise, GivesTheSameNumbersOnEveryInstructionSetOfTheMachine) {
  std::vector<std::vector<double>> results;
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const OnlyTargets only(rest & -rest);
    auto optimizer = make();
    TestSlot& slot = optimizer.add(noise(37, 1));
    for (int t = 0; t < 20; ++t) {
      slot.grad = noise(37, 10 + t);
      optimizer.update();
    }
    results.push_back(values_of(slot.param));
    for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_NEAR(results.back()[i], results[0][i], 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Elementwise, ::testing::ValuesIn(with_defaults()), name_of);

INSTANTIATE_TEST_SUITE_P(
    Settings, Elementwise,
    ::testing::Values(Case{"adam", "AdamW", R"({"weight_decay": 0.1})"},
                      Case{"adam", "Adam", R"({"adam_w_mode": false, "torch_adam": true, "amsgrad": true})"},
                      Case{"sgd", "SGD", R"({"weight_decay": 0.1})"}, Case{"sgd", "SGD", R"({"momentum": 0.9})"},
                      Case{"adagrad", "Adagrad", R"({"initial_accumulator_value": 0.1})"},
                      Case{"lion", "Lion", R"({"weight_decay": 0.1})"},
                      Case{"rmsprop", "RMSprop", R"({"lr": 1e-4, "momentum": 0.9, "centered": true, "eps": 1e-3})"}),
    name_of);

}  // namespace
}  // namespace capstan::testing
