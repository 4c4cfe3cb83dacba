#include "core/parameters/parameter_store.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<NamedTensor> parameters() {
  return {{"matrix", at::randn({4, 6}).requires_grad_()},
          {"bias", at::randn({5}).requires_grad_()},
          {"frozen", at::randn({3})},
          {"turned", at::randn({3, 2}).t().requires_grad_()}};
}

StateSpec state(const char* name) {
  StateSpec spec;
  spec.name = name;
  return spec;
}

struct Stored {
  explicit Stored(ParameterStore::Options options = {}, ComponentChoice optimizer = {})
      : groups(model, optimizer, {}), store(model, groups, accelerator, [&] {
          options.state_dtype = [](const StateSpec&) { return at::kFloat; };
          return std::move(options);
        }()) {}

  /// One micro-batch whose gradient of parameter i is `value` everywhere.
  void backward(std::size_t i, double value) {
    store.begin_backward("step 0", true, false);
    const at::Tensor& parameter = model[i].tensor;
    model[i].tensor.mutable_grad() = at::full(parameter.sizes(), value, parameter.options().requires_grad(false));
    store.end_backward();
  }

  std::vector<NamedTensor> model = parameters();
  CpuAccelerator accelerator;
  ParameterGroups groups;
  ParameterStore store;
};

std::vector<std::string> names(const std::vector<const capstan_slot*>& slots) {
  std::vector<std::string> all;
  for (const capstan_slot* slot : slots) all.emplace_back(slot->name.data, slot->name.size);
  return all;
}

TEST(ParameterStore, KeepsWhatIsTrainedApartFromWhatIsFrozen) {
  Stored run;
  ASSERT_EQ(run.store.entries().size(), 3u);
  ASSERT_EQ(run.store.frozen().size(), 1u);
  EXPECT_EQ(run.store.frozen()[0].name, "frozen");
  // A parameter in row-major order is its own master; another has one that is.
  EXPECT_FALSE(run.store.entries()[0].separate);
  EXPECT_TRUE(run.store.entries()[2].separate);
  EXPECT_TRUE(run.store.entries()[2].master.is_contiguous());
  EXPECT_TRUE(run.store.entries()[2].master.equal(run.model[3].tensor));
}

TEST(ParameterStore, KeepsMastersThatRoundingWouldChange) {
  ParameterStore::Options options;
  options.compute_dtype = at::kBFloat16;
  Stored run(std::move(options));
  ParameterEntry& entry = run.store.entries()[0];
  EXPECT_EQ(run.model[0].tensor.scalar_type(), at::kBFloat16);
  EXPECT_EQ(entry.master.scalar_type(), at::kFloat);
  EXPECT_TRUE(entry.compute.equal(entry.master.to(at::kBFloat16)));
  entry.master.add_(1);
  run.store.refresh_all();
  EXPECT_TRUE(run.model[0].tensor.detach().equal(entry.master.to(at::kBFloat16)));
}

TEST(ParameterStore, AddsMicroBatchesUpInTheAccumulationType) {
  ParameterStore::Options options;
  options.compute_dtype = at::kBFloat16;
  options.accumulation_dtype = at::kFloat;
  Stored run(std::move(options));
  // 256 + 1 is no bfloat16 number: there the ones would be lost.
  run.backward(1, 256);
  for (int i = 0; i < 3; ++i) run.backward(1, 1);
  const auto& gradients = run.store.collect_gradients();
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_TRUE(gradients[0]->equal(at::full({5}, 259.0)));
}

TEST(ParameterStore, GivesSlotsOfWhatHasAGradientAlone) {
  Stored run;
  run.backward(0, 2);
  run.backward(3, 3);
  EXPECT_EQ(run.store.collect_gradients().size(), 2u);
  EXPECT_TRUE(run.store.has_gradient(0));
  EXPECT_FALSE(run.store.has_gradient(1));
  ASSERT_EQ(run.store.sub_groups().size(), 1u);
  EXPECT_THAT(names(run.store.slots(run.store.sub_groups()[0])), ElementsAre("matrix", "turned"));
  EXPECT_THAT(names(run.store.slots_without_gradients()), ElementsAre("matrix", "bias", "turned"));
  run.store.drop_gradients(/*applied=*/true);
  EXPECT_TRUE(run.store.collect_gradients().empty());
}

TEST(ParameterStore, ForgetsTheGradientsOfAStepThatWasAbandoned) {
  ParameterStore::Options options;
  options.compute_dtype = at::kBFloat16;
  Stored run(std::move(options));
  run.backward(1, 7);
  run.model[0].tensor.mutable_grad() = at::full({4, 6}, 1.0, at::kBFloat16);  // backward ended by an exception
  run.store.drop_gradients(/*applied=*/false);
  run.backward(1, 2);
  const auto& gradients = run.store.collect_gradients();
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_TRUE(gradients[0]->equal(at::full({5}, 2.0)));
}

/// A sub-group ends with the parameter by which it has as many elements as asked for: 24, 5 and 6 are there.
TEST(ParameterStore, EndsASubGroupWhereItHasEnoughElements) {
  const auto ends = [](std::int64_t size) {
    ParameterStore::Options options;
    options.sub_group_size = size;
    const Stored run(std::move(options));
    std::vector<std::size_t> all;
    for (const SubGroup& sub_group : run.store.sub_groups()) all.push_back(sub_group.end);
    return all;
  };
  EXPECT_THAT(ends(1), ElementsAre(1u, 2u, 3u));
  EXPECT_THAT(ends(25), ElementsAre(2u, 3u));
  EXPECT_THAT(ends(1000), ElementsAre(3u));
}

TEST(ParameterStore, VisitsTheStatesThatAnEntryHas) {
  ParameterStore::Options options;
  options.states = {state("exp_avg"), state("whole"), state("off"), state("count")};
  options.states[0].init = 4;
  options.states[1].extent = StateSpec::Extent::kModel;
  options.states[2].when = "amsgrad";
  options.states[3].like = StateSpec::Like::kScalar;
  ComponentChoice optimizer;
  optimizer.params = Json::parse(R"({"amsgrad": false})");
  Stored run(std::move(options), optimizer);
  std::vector<std::string> seen;
  run.store.for_each_state(run.store.pieces()[0], [&](const StateSpec& spec, at::Tensor& values) {
    seen.push_back(spec.name + " " + std::to_string(values.numel()));
    EXPECT_TRUE(values.eq(spec.init).all().item<bool>()) << spec.name;
  });
  EXPECT_THAT(seen, ElementsAre("exp_avg 24", "count 1"));
  EXPECT_EQ(run.store.model_state_tensors()[0].numel(), 24 + 5 + 6);
}

TEST(ParameterStore, RefusesWhatCannotBeTrained) {
  const std::vector<NamedTensor> model = {{"phase", at::zeros({2}, at::kComplexFloat).requires_grad_()}};
  const ParameterGroups groups(model, {}, {});
  const CpuAccelerator accelerator;
  EXPECT_THAT([&] { ParameterStore(model, groups, accelerator, {}); },
              ThrowsMessage<RuntimeFault>(HasSubstr("parameter 'phase': its dtype is ComplexFloat; only real "
                                                    "floating-point parameters can be trained.")));
}

}  // namespace
}  // namespace capstan
