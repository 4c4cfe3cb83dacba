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
          if (!options.state_dtype) options.state_dtype = [](const StateSpec&) { return at::kFloat; };
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

ParameterStore::Options in_bfloat16() {
  ParameterStore::Options options;
  options.compute_dtype = at::kBFloat16;
  options.low_precision_masters = true;
  options.states = {state("exp_avg"), state("count")};
  options.states[1].like = StateSpec::Like::kScalar;
  options.state_dtype = [](const StateSpec& spec) { return spec.name == "exp_avg" ? at::kBFloat16 : at::kLong; };
  options.widens = [](const StateSpec& spec) { return spec.name == "exp_avg"; };
  return options;
}

TEST(ParameterStore, HasNoMastersBesideParametersOf16BitsThatAreTheMasters) {
  Stored run(in_bfloat16());
  for (const std::size_t i : {0, 1}) {
    const ParameterEntry& entry = run.store.entries()[i];
    EXPECT_EQ(entry.master.const_data_ptr(), run.model[i].tensor.const_data_ptr());
    EXPECT_EQ(run.store.kept(i, 0).nbytes(), static_cast<std::size_t>(2 * entry.master.numel()));
  }
  // Of a layout that is not contiguous there is a master, of 16 bits too.
  EXPECT_EQ(run.store.entries()[2].master.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(run.store.entries()[2].master.is_contiguous());
}

TEST(ParameterStore, ShowsMastersAndStatesOf16BitsInFp32AndRoundsWhatHasChanged) {
  Stored run(in_bfloat16());
  const SubGroup& all = run.store.sub_groups()[0];
  const at::Tensor before = run.model[0].tensor.detach().clone();
  const float third = 1 + 0x1p-8f + 0x1p-12f;  // nearest of bfloat16: 1 + 2^-7
  run.store.acquire(all);
  Piece& piece = run.store.pieces(all)[0];
  EXPECT_EQ(piece.master.scalar_type(), at::kFloat);
  EXPECT_EQ(piece.state[0].scalar_type(), at::kFloat);
  EXPECT_EQ(piece.state[1].scalar_type(), at::kLong);
  EXPECT_TRUE(piece.master.equal(before.to(at::kFloat)));
  piece.master.fill_(5);
  run.store.release(all, /*changed=*/false);
  EXPECT_TRUE(run.model[0].tensor.detach().equal(before));
  run.store.acquire(all);
  run.store.pieces(all)[0].master.fill_(third);
  run.store.pieces(all)[2].master.fill_(third);
  run.store.pieces(all)[0].state[0].fill_(third);
  run.store.release(all, /*changed=*/true);
  run.store.refresh_all();
  const at::Tensor rounded = at::full({4, 6}, 1 + 0x1p-7);
  EXPECT_TRUE(run.model[0].tensor.detach().to(at::kFloat).equal(rounded));
  EXPECT_TRUE(run.model[3].tensor.detach().to(at::kFloat).equal(at::full({2, 3}, 1 + 0x1p-7)));
  EXPECT_TRUE(run.store.kept(0, 0).to(at::kFloat).equal(rounded.view({-1})));
  run.store.acquire(all);
  EXPECT_TRUE(run.store.pieces(all)[0].master.equal(rounded));
  run.store.release(all, /*changed=*/false);
}

/// The optimizer's own rounding is to the nearest, so that it is not lent what is kept.
TEST(ParameterStore, RoundsUpdatesAtRandomAndOtherChangesToTheNearest) {
  ParameterStore::Options options = in_bfloat16();
  options.rounding_seed = 7;
  Stored run(std::move(options));
  run.backward(0, 1);
  run.store.collect_gradients();
  const SubGroup& all = run.store.sub_groups()[0];
  const auto changed = [&](bool by_update) {
    run.store.acquire(all);
    const auto& slots = run.store.slots(all);
    EXPECT_EQ(slots[0]->compute, nullptr);
    run.store.pieces(all)[0].master.fill_(1 + 0x1p-8f);  // half way between two numbers
    if (by_update) run.store.refresh(all, 3);
    run.store.release(all, /*changed=*/true);
    return run.model[0].tensor.detach().to(at::kFloat);
  };
  EXPECT_TRUE(changed(false).equal(at::full({4, 6}, 1.0)));  // ties to even
  const at::Tensor at_random = changed(true);
  EXPECT_EQ(at_random.min().item<float>(), 1);
  EXPECT_EQ(at_random.max().item<float>(), 1 + 0x1p-7f);
  EXPECT_TRUE(changed(true).equal(at_random));  // the same update of the same values
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
