#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include "sdk/conformance/compression_under_test.hpp"
#include "sdk/conformance/footprint.hpp"
#include "sdk/conformance/rank_group.hpp"

/// What components of kind compression do with the inputs of operators, and what they keep.
namespace capstan::conformance {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// A training micro-batch's inputs of all planned operators.
void train_micro_batch(const CompressionUnderTest& compression, std::mt19937_64& random, float size = 1) {
  for (const std::string& module : compression.operands()) {
    compression.operand(module, operand_input(module, random, at::kFloat, size), true);
  }
}

/// A training step of two micro-batches, and its end.
void train(const CompressionUnderTest& compression, std::mt19937_64& random, std::int64_t step) {
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) train_micro_batch(compression, random);
  compression.settle(compression.first_active() + step);
}

/// What evaluation makes of the same inputs.
std::vector<at::Tensor> evaluate(const CompressionUnderTest& compression, std::mt19937_64 random) {
  std::vector<at::Tensor> made;
  for (const std::string& module : compression.operands()) {
    made.push_back(compression.operand(module, operand_input(module, random, at::kFloat), false));
  }
  return made;
}

bool same_values(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (!conformance::same_values(one[i], other[i])) return false;
  }
  return one.size() == other.size();
}

void check_operands(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const std::string& module : compression.operands()) {
    for (const at::ScalarType dtype : kDtypes) {
      const at::Tensor input = operand_input(module, random, dtype);
      for (const at::Tensor& tried : {input, at::zeros(input.sizes(), dtype), at::full(input.sizes(), 0.7, dtype)}) {
        for (const bool training : {true, false}) {
          expect(at::isfinite(compression.operand(module, tried, training)).all().item<bool>(),
                 "operand of '" + module + "', " + c10::toString(dtype) +
                     ": makes infinities or NaN of finite values, or leaves some of `out` as they were.");
        }
      }
    }
  }
}

void check_evaluation(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  train(compression, random, 0);
  const std::string before = compression.has_state() ? compression.save() : "";
  const auto inputs = random;
  const auto first = evaluate(compression, inputs);
  for (const std::string& module : compression.operands()) {
    compression.operand(module, operand_input(module, random, at::kFloat, 100.0f), false);
  }
  expect(same_values(evaluate(compression, inputs), first),
         "operand gives something else of an input once other ones were evaluated.");
  expect(!compression.has_state() || compression.save() == before, "evaluation changes what it saves.");
}

void expect_finite(const std::vector<at::Tensor>& made, const std::string& when) {
  for (const at::Tensor& one : made) {
    expect(at::isfinite(one).all().item<bool>(),
           "operand makes infinities or NaN of finite values in evaluation, " + when + ".");
  }
}

void check_settle(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (std::int64_t updates = 0; updates < 3; ++updates) compression.settle(updates);  // nothing was seen yet
  if (compression.plan().operands.empty()) return;
  expect_finite(evaluate(compression, random), "before the first training step");
  for (std::int64_t step = 0; step < 3; ++step) train(compression, random, step);
  compression.settle(compression.first_active() + 3);
  expect_finite(evaluate(compression, random), "after three training steps");
}

/// A micro-batch that fails is forgotten by loading what was saved before it. Both have seen the same so far.
void check_midst_of_step(const CompressionUnderTest& straight, const CompressionUnderTest& disturbed,
                         std::mt19937_64& random) {
  auto again = random, lost = random;
  train_micro_batch(straight, random);
  train_micro_batch(disturbed, again);
  const std::string saved = disturbed.save();
  train_micro_batch(disturbed, lost, 100.0f);
  disturbed.load(saved);
  train(straight, random, 4);
  train(disturbed, again, 4);
  expect(straight.save() == disturbed.save() && same_values(evaluate(straight, random), evaluate(disturbed, random)),
         "saved in the midst of a step, and loaded after a micro-batch more, it ends that step another way.");
}

void check_round_trip(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest straight(context, component), resumed(context, component);
  if (!straight.has_state()) throw Skip("keeps nothing: it has no save and load.");
  auto random = context.random();
  const bool operands = !straight.plan().operands.empty();
  for (std::int64_t step = 0; operands && step < 3; ++step) train(straight, random, step);
  const std::string saved = straight.save();
  expect(straight.save() == saved, "saved twice, it writes two texts.");
  resumed.load(saved);
  expect(resumed.save() == saved, "saved, loaded and saved again, it writes another text.");
  if (!operands) return;
  expect(same_values(evaluate(straight, random), evaluate(resumed, random)),
         "saved and loaded, it makes something else of the same inputs.");
  auto again = random;
  train(straight, random, 3);
  train(resumed, again, 3);
  expect(straight.save() == resumed.save() && same_values(evaluate(straight, random), evaluate(resumed, random)),
         "saved and loaded, it goes another way in the step after.");
  check_midst_of_step(straight, resumed, random);
}

void check_ranks_agree(const Context& context, const ComponentManifest& component) {
  constexpr std::uint32_t kRanks = 2;
  static_cast<void>(CompressionUnderTest(context, component).operands());  // or skips
  RankGroup group(kRanks);
  std::vector<std::vector<at::Tensor>> made(kRanks);
  std::vector<std::string> saved(kRanks);
  group.run([&](std::uint32_t index) {
    RankGroup::Seat seat{&group, index};
    const CompressionUnderTest compression(context, component,
                                           [&](capstan_host& host) { RankGroup::lend(host, seat); });
    std::mt19937_64 random(context.seed + 1000 * (index + 1));
    for (std::int64_t step = 0; step < 3; ++step) train(compression, random, step);
    made[index] = evaluate(compression, context.random());
    if (compression.has_state()) saved[index] = compression.save();
  });
  expect(same_values(made[0], made[1]) && saved[0] == saved[1],
         "after three steps with other inputs on each of two ranks, and settle at the end of each, the ranks make "
         "something else of the same input.");
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  const std::string module = compression.operands().front();
  auto random = context.random();
  const at::Tensor input = operand_input(module, random, at::kFloat);
  std::int64_t step = 0;
  expect_no_leak("operand and settle", [&] {
    compression.operand(module, input, true);
    compression.settle(compression.first_active() + step++);
  });
}

}  // namespace

Cases compression_operand_cases(const ComponentManifest& component) {
  const std::string prefix = "compression/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "operands", "An operator gets an input of the same shape and dtype, and its own is left alone.",
       bound(check_operands)},
      {prefix + "evaluation", "Evaluation uses what training has found, and changes nothing.", bound(check_evaluation)},
      {prefix + "settle", "Steps end, also those in which nothing was seen.", bound(check_settle)},
      {prefix + "state_round_trip", "Saved and loaded, it goes on as if it had never stopped.",
       bound(check_round_trip)},
      {prefix + "ranks_agree", "After a step all ranks make the same of an input.", bound(check_ranks_agree)},
      {prefix + "operand_leak", "Calls keep no memory, however many a run makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
