#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sdk/conformance/footprint.hpp"
#include "sdk/conformance/optimizer_under_test.hpp"

namespace capstan::conformance {
namespace {

constexpr std::int64_t kMostElements = 1'000'000;  // a state of larger parameters alone is not tried

/// The largest block of the optimizer's states; 1 where each has a value an element.
std::size_t block_of(const ComponentManifest& component) {
  std::int64_t block = 1;
  for (const StateSpec& state : component.state) block = std::max(block, state.block);
  return static_cast<std::size_t>(block);
}

/// Elements of a parameter that is large enough for every state to be there, and for a block in each of three parts,
/// the last of which ends within one.
std::size_t elements_of(const ComponentManifest& component) {
  std::int64_t most = 1000;
  for (const StateSpec& state : component.state) {
    if (state.when_min_numel <= kMostElements) most = std::max(most, state.when_min_numel);
  }
  const auto elements = static_cast<std::size_t>(most);
  const std::size_t block = block_of(component);
  return block > 1 ? std::max(elements, 3 * block) + 7 : elements;
}

/// An optimizer, one parameter, and gradients from a seed.
struct Run {
  Run(const Context& context, const ComponentManifest& component, Piece::Options options = {})
      : random(context.random()),
        elements(elements_of(component)),
        optimizer(context, component),
        piece(component, optimizer.numbers, "w", random_values(random, elements), options) {}

  void step(double grad_scale = 1.0) {
    piece.set_grad(random_values(random, elements));
    optimizer.update({&piece}, grad_scale);
  }

  std::mt19937_64 random;
  std::size_t elements;
  OptimizerUnderTest optimizer;
  Piece piece;
};

void check_finite(const Context& context, const ComponentManifest& component) {
  Run run(context, component);
  for (int i = 0; i < 20; ++i) {
    run.step();
    expect(run.piece.finite(), "update " + std::to_string(i) + " makes numbers that are not finite.");
  }
}

void check_deterministic(const Context& context, const ComponentManifest& component) {
  Run first(context, component), second(context, component);
  for (int i = 0; i < 10; ++i) {
    first.step();
    second.step();
    expect(first.piece.bytes() == second.piece.bytes(),
           "update " + std::to_string(i) + " differs between two runs on the same numbers.");
  }
}

/// Slices of a parameter, as ranks own them.
std::vector<Piece> slices(const OptimizerUnderTest& optimizer, const std::vector<float>& values) {
  std::vector<Piece> made;
  const std::size_t block = block_of(optimizer.manifest), elements = values.size();
  std::size_t begin = 0;
  for (const std::size_t end : {elements / 3 / block * block, elements * 2 / 3 / block * block, elements}) {
    made.emplace_back(
        optimizer.manifest, optimizer.numbers, "w",
        std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(begin),
                           values.begin() + static_cast<std::ptrdiff_t>(end)),
        Piece::Options{.offset = static_cast<std::int64_t>(begin), .full_numel = static_cast<std::int64_t>(elements)});
    begin = end;
  }
  return made;
}

void check_shards(const Context& context, const ComponentManifest& component) {
  if (!component.has_trait("elementwise") && !component.has_trait("needs_param_norm")) {
    throw Skip("it is declared neither elementwise nor needs_param_norm, so it always gets whole parameters.");
  }
  auto random = context.random();
  const std::size_t elements = elements_of(component);
  OptimizerUnderTest whole_optimizer(context, component), sliced_optimizer(context, component);
  const auto values = random_values(random, elements);
  Piece whole(component, whole_optimizer.numbers, "w", values);
  auto parts = slices(sliced_optimizer, values);
  for (int i = 0; i < 10; ++i) {
    const auto gradients = random_values(random, elements);
    whole.set_grad(gradients);
    whole_optimizer.update({&whole});
    std::vector<std::vector<Piece*>> calls;
    for (Piece& part : parts) {
      const auto begin = gradients.begin() + static_cast<std::ptrdiff_t>(part.slot.offset);
      part.set_grad(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(part.slot.numel)));
      calls.push_back({&part});
    }
    sliced_optimizer.update(calls);
    std::vector<float> joined;
    for (const Piece& part : parts) {
      const auto values_of_part = part.param();
      joined.insert(joined.end(), values_of_part.begin(), values_of_part.end());
    }
    const auto wanted = whole.param();
    // Sums over shards round in another order; everything else must be the same bit by bit.
    const bool exact = component.has_trait("elementwise") && component.measures_model == 0;
    for (std::size_t k = 0; k < elements; ++k) {
      const bool same = exact ? joined[k] == wanted[k] : std::fabs(joined[k] - wanted[k]) <= 1e-5f;
      expect(same, "element " + std::to_string(k) + " differs at update " + std::to_string(i) +
                       " when the parameter comes in three parts.");
    }
  }
}

void check_calls(const Context& context, const ComponentManifest& component) {
  if (component.has_trait("own_communication")) {
    throw Skip("it communicates by itself, so it always gets all slots of an update in one call.");
  }
  auto random = context.random();
  const std::size_t elements = elements_of(component);
  OptimizerUnderTest together(context, component), apart(context, component);
  std::vector<Piece> first, second;
  for (const char* name : {"a", "b", "c"}) {
    const auto values = random_values(random, elements);
    first.emplace_back(component, together.numbers, name, values);
    second.emplace_back(component, apart.numbers, name, values);
  }
  for (int i = 0; i < 5; ++i) {
    for (std::size_t k = 0; k < first.size(); ++k) {
      const auto gradients = random_values(random, elements);
      first[k].set_grad(gradients);
      second[k].set_grad(gradients);
    }
    together.update({&first[0], &first[1], &first[2]});
    apart.update(std::vector<std::vector<Piece*>>{{&second[0]}, {&second[1], &second[2]}});
    for (std::size_t k = 0; k < first.size(); ++k) {
      expect(first[k].bytes() == second[k].bytes(), "parameter '" + first[k].name + "' differs at update " +
                                                        std::to_string(i) +
                                                        " when the slots of one update come in two calls.");
    }
  }
}

void check_round_trip(const Context& context, const ComponentManifest& component) {
  Run straight(context, component), before(context, component), after(context, component);
  for (int i = 0; i < 10; ++i) {
    straight.step();
    before.step();
  }
  const std::string saved = before.optimizer.save();
  Json::parse(saved.empty() ? "{}" : saved);
  after.piece.copy_from(before.piece);
  for (const auto& state : before.optimizer.model_states) after.optimizer.model_states.push_back(state.clone());
  after.random = before.random;
  after.optimizer.load(saved, 10);
  for (int i = 10; i < 20; ++i) {
    straight.step();
    after.step();
    expect(straight.piece.bytes() == after.piece.bytes(),
           "ten updates, save, load and ten more are not twenty updates: they differ at update " + std::to_string(i) +
               ". Keep what must last in the manifest's state, or in save and load.");
  }
}

void check_zero_gradient(const Context& context, const ComponentManifest& component) {
  Run run(context, component);
  for (int i = 0; i < 3; ++i) {
    run.piece.set_grad(std::vector<float>(run.elements, 0.0f));
    run.optimizer.update({&run.piece});
    expect(run.piece.finite(), "a gradient of zeros makes numbers that are not finite.");
  }
}

/// Parameters after updates at these rates.
std::string after_rates(const Context& context, const ComponentManifest& component, const std::vector<double>& rates) {
  Run run(context, component);
  for (const double rate : rates) {
    run.optimizer.numbers["lr"] = rate;
    run.step();
  }
  return run.piece.bytes();
}

/// True where the rate is where the optimizer starts from, as in Rprop, and no factor of later updates.
bool rate_is_a_start(const Context& context, const ComponentManifest& component) {
  const double rate = OptimizerUnderTest(context, component).numbers.at("lr").as_number();
  return after_rates(context, component, {rate, rate}) == after_rates(context, component, {rate, rate / 2}) &&
         after_rates(context, component, {rate}) != after_rates(context, component, {rate / 2});
}

void check_zero_rate(const Context& context, const ComponentManifest& component) {
  if (rate_is_a_start(context, component)) throw Skip("its rate is the size of the first step only.");
  Run run(context, component);
  run.optimizer.numbers["lr"] = 0.0;
  const auto before = run.piece.param();
  for (int i = 0; i < 3; ++i) run.step();
  expect(run.piece.param() == before, "the parameter changes although the learning rate is 0.");
}

void check_guards(const Context& context, const ComponentManifest& component) {
  for (const std::size_t numel : {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{1023}}) {
    auto random = context.random();
    OptimizerUnderTest optimizer(context, component);
    Piece piece(component, optimizer.numbers, "w", random_values(random, numel));
    piece.set_grad(random_values(random, numel));
    optimizer.update({&piece});
    expect(piece.guards_intact(), "writes outside of a slot of " + std::to_string(numel) + " elements.");
  }
}

void check_nan(const Context& context, const ComponentManifest& component) {
  Run run(context, component);
  auto gradients = random_values(run.random, run.elements);
  gradients[3] = std::numeric_limits<float>::quiet_NaN();
  gradients[5] = std::numeric_limits<float>::infinity();
  run.piece.set_grad(gradients);
  run.optimizer.update({&run.piece});
  expect(run.piece.guards_intact(), "a gradient that is not a number makes it write outside of its slot.");
}

void check_dtypes(const Context& context, const ComponentManifest& component) {
  for (const auto dtype : {c10::ScalarType::BFloat16, c10::ScalarType::Half}) {
    Run run(context, component, {.grad_dtype = dtype});
    Run wide(context, component);
    for (int i = 0; i < 3; ++i) {
      const auto gradients = random_values(run.random, run.elements);
      run.piece.set_grad(gradients);
      // The same numbers, rounded to 16 bits before.
      wide.piece.grad_tensor.copy_(run.piece.grad_tensor);
      run.optimizer.update({&run.piece});
      wide.optimizer.update({&wide.piece});
    }
    expect(run.piece.param() == wide.piece.param(), std::string("gradients in ") + c10::toString(dtype) +
                                                        " give other parameters than the same numbers in float32.");
  }
}

void check_compute_copy(const Context& context, const ComponentManifest& component) {
  Run run(context, component, {.compute_copy = true});
  Run plain(context, component);
  for (int i = 0; i < 3; ++i) {
    run.piece.compute_written = 0;
    run.step();
    plain.step();
    if (!run.piece.compute_written) throw Skip("it leaves the compute copy to the engine.");
    expect(run.piece.compute_tensor.equal(run.piece.param_tensor.to(c10::ScalarType::BFloat16)),
           "the compute copy is not the new values rounded to nearest even.");
  }
  expect(run.piece.param() == plain.piece.param(), "a compute copy changes the master values.");
  expect(run.piece.guards_intact(), "writes outside of the compute copy.");
}

void check_grad_scale(const Context& context, const ComponentManifest& component) {
  Run scaled(context, component), plain(context, component);
  for (int i = 0; i < 3; ++i) {
    const auto gradients = random_values(plain.random, plain.elements);
    auto larger = gradients;
    for (float& value : larger) value *= 1024.0f;  // exact
    plain.piece.set_grad(gradients);
    scaled.piece.set_grad(larger);
    plain.optimizer.update({&plain.piece});
    scaled.optimizer.update({&scaled.piece}, 1.0 / 1024);
  }
  expect(plain.piece.param() == scaled.piece.param(), "does not multiply every gradient by grad_scale.");
}

void check_quadratic(const Context& context, const ComponentManifest& component) {
  Run run(context, component);
  const auto loss = [&] {
    const auto values = run.piece.param();
    return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  };
  const double before = loss();
  for (int i = 0; i < 100; ++i) {
    run.piece.set_grad(run.piece.param());
    run.optimizer.update({&run.piece});
  }
  expect(loss() < before, "a hundred updates do not lower the loss of a quadratic, from " + std::to_string(before) +
                              " to " + std::to_string(loss()) + ".");
}

void check_update_leak(const Context& context, const ComponentManifest& component) {
  Run run(context, component);
  expect_no_leak("update", [&] { run.step(); });
}

}  // namespace

Cases optimizer_cases(const ComponentManifest& component) {
  const std::string prefix = "optimizer/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "finite", "Finite gradients keep parameters and states finite.", bound(check_finite)},
      {prefix + "deterministic", "The same numbers give the same bits.", bound(check_deterministic)},
      {prefix + "shard_invariance", "A parameter in parts gets the same update as in one piece.", bound(check_shards)},
      {prefix + "several_calls", "One update may come in several calls with disjoint slots.", bound(check_calls)},
      {prefix + "state_round_trip", "Saved and loaded in a new instance, it goes on with the same bits.",
       bound(check_round_trip)},
      {prefix + "zero_gradient", "A gradient of zeros keeps everything finite.", bound(check_zero_gradient)},
      {prefix + "zero_rate", "A learning rate of 0 leaves the parameters alone.", bound(check_zero_rate)},
      {prefix + "guards", "It writes its slots and nothing else.", bound(check_guards)},
      {prefix + "nan_gradient", "A gradient that is not a number crashes nothing.", bound(check_nan)},
      {prefix + "gradient_dtypes", "Gradients in bfloat16 and float16 work like the same numbers in float32.",
       bound(check_dtypes)},
      {prefix + "compute_copy", "A compute copy that it writes holds the new values, rounded to nearest even.",
       bound(check_compute_copy)},
      {prefix + "grad_scale", "Every gradient is multiplied by grad_scale.", bound(check_grad_scale)},
      {prefix + "quadratic", "It lowers the loss of a quadratic.", bound(check_quadratic)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_update_leak)},
  };
}

}  // namespace capstan::conformance
