#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sdk/conformance/compression_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

/// What every component of kind compression does with parameters.
namespace capstan::conformance {
namespace {

std::string of(const Planned& planned) { return " of '" + planned.name + "'"; }

void check_plan(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest first(context, component);  // throws for a plan that does not fit the model
  expect(CompressionUnderTest::plan_of(context, component, compressed_model()) ==
             CompressionUnderTest::plan_of(context, component, compressed_model()),
         "two instances make two plans for one model: ranks and resumed runs would not agree.");
  Json empty = compressed_model();
  empty["modules"] = Json::array();
  const std::string nothing = CompressionUnderTest::plan_of(context, component, empty);
  if (nothing.empty()) return;  // refused, with a text
  try {
    read_plan(Json::parse(nothing), empty, "'" + component.type + "'");
  } catch (const std::exception& error) {
    throw Broken(std::string("of a model without modules: ") + error.what());
  }
}

void check_active(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest one(context, component), other(context, component);
  if (!one.has_active()) throw Skip("has no active: it acts always.");
  std::vector<std::int64_t> updates = {0, 1, 2, 3};
  for (std::int64_t at = 4; at < std::int64_t{1} << 40; at *= 2) updates.insert(updates.end(), {at - 1, at, at + 1});
  std::vector<bool> answers;
  answers.reserve(updates.size());
  for (const std::int64_t at : updates) answers.push_back(one.active(at));
  for (std::size_t i = updates.size(); i-- > 0;) {
    expect(one.active(updates[i]) == answers[i] && other.active(updates[i]) == answers[i],
           "asked twice whether it acts after " + std::to_string(updates[i]) + " updates, it gives two answers.");
  }
}

void check_pieces(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const Planned& planned : compression.parameters()) {
    const at::Tensor values = random_weights(random, planned.numel());
    const std::vector<double> statistics = compression.statistics(planned, values, {planned.whole()});
    const at::Tensor whole = compression.transform(planned, values, planned.whole(), statistics);
    for (int round = 0; round < 2; ++round) {
      const std::vector<Range> pieces = pieces_of(planned, random);
      expect(compression.statistics(planned, values, pieces) == statistics,
             "measure" + of(planned) + " gives other numbers of pieces than of the whole.");
      for (const Range& piece : pieces) {
        const at::Tensor part = compression.transform(planned, values, piece, statistics);
        expect(same_values(part, whole.narrow(0, piece.offset, piece.numel)),
               "transform" + of(planned) + " makes something else of elements " + std::to_string(piece.offset) +
                   " to " + std::to_string(piece.offset + piece.numel) + " alone than of the whole.");
      }
    }
  }
}

void check_statistics(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest measured(context, component), other(context, component);
  auto random = context.random();
  for (const Planned& planned : measured.parameters()) {
    const at::Tensor values = random_weights(random, planned.numel());
    const at::Tensor more = random_weights(random, planned.numel(), 0.15f);
    const std::vector<double> statistics = measured.statistics(planned, values, {planned.whole()});
    const std::vector<double> wider = measured.statistics(planned, more, {planned.whole()});
    const at::Tensor made = measured.transform(planned, values, planned.whole(), statistics);
    expect(same_values(other.transform(planned, values, planned.whole(), statistics), made),
           "transform" + of(planned) +
               " is another one where measure was called by an instance of its own: what is measured comes back in "
               "`statistics`, joined over all ranks, and nowhere else.");
    expect(wider.empty() || same_values(measured.transform(planned, values, planned.whole(), wider),
                                        other.transform(planned, values, planned.whole(), wider)),
           "transform" + of(planned) + " depends on more than its input and the statistics that it is given.");
  }
}

void check_in_place(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const Planned& planned : compression.parameters()) {
    const at::Tensor values = random_weights(random, planned.numel());
    const std::vector<double> statistics = compression.statistics(planned, values, {planned.whole()});
    expect(same_values(compression.transform(planned, values, planned.whole(), statistics, true),
                       compression.transform(planned, values, planned.whole(), statistics)),
           "transform" + of(planned) + " gives something else where `values` is the input itself.");
  }
}

/// Values that are all finite, and hard to divide by.
std::vector<std::pair<const char*, at::Tensor>> odd_values(std::mt19937_64& random, const Planned& planned) {
  const std::int64_t count = planned.numel();
  at::Tensor outlier = random_weights(random, count);
  outlier[0] = 1e30;
  at::Tensor sparse = random_weights(random, count);
  sparse.masked_fill_(sparse.abs().lt(0.034), 0);
  return {{"zeros", at::zeros({count}, at::kFloat)},
          {"values of which half are 0", sparse},
          {"one positive value", at::full({count}, 0.3f, at::kFloat)},
          {"one negative value", at::full({count}, -2.5f, at::kFloat)},
          {"values around 1e-38", random_weights(random, count, 1e-38f)},
          {"values around 1e-42", random_weights(random, count, 1e-42f)},
          {"values around 1e30", random_weights(random, count, 1e30f)},
          {"an outlier of 1e30", outlier}};
}

void check_finite(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const Planned& planned : compression.parameters()) {
    for (const auto& [what, values] : odd_values(random, planned)) {
      expect(at::isfinite(compression.transform(planned, values)).all().item<bool>(),
             "transform" + of(planned) + " makes infinities or NaN of " + what + ".");
    }
  }
}

/// What is wrong with a code, its scale and zero point; empty: nothing.
std::string fault_of(const CompressionPlan::Parameter& plan, int code, float scale, int zero, float wanted) {
  const int bits = plan.bits, most = (1 << (bits - 1)) - (bits > 1), least = bits > 1 ? -(1 << (bits - 1)) : -1;
  if (!std::isfinite(scale)) return "the scale of its group is not finite.";
  if (zero != 0 && !plan.zero_points) {
    return "the zero point is " + std::to_string(zero) + ", and its plan has no zero_points.";
  }
  if (code < least || code > most) {
    return "the code is " + std::to_string(code) + ", and codes of " + std::to_string(bits) +
           (bits == 1 ? " bit are -1, 0 and 1."
                      : " bits lie from " + std::to_string(least) + " to " + std::to_string(most) + ".");
  }
  if (static_cast<float>(code - zero) * scale == wanted) return "";
  return "(" + std::to_string(code) + " - " + std::to_string(zero) + ") * " + std::to_string(scale) +
         " is not what transform makes of it, " + std::to_string(wanted) + ".";
}

void expect_right(const std::string& fault, const Planned& planned, std::int64_t element, const std::string& what) {
  if (fault.empty()) return;
  throw Broken("encode" + of(planned) + ", element " + std::to_string(element) + " of " + what + ": " + fault);
}

/// Throws Broken unless codes, scales and zero points are what the ABI says, and their values those of transform.
void check_codes_of(const Planned& planned, const Range& range, const PieceCodes& made, const at::Tensor& values,
                    const std::string& what) {
  const GroupLayout& layout = planned.plan.layout;
  const auto* codes = made.codes.const_data_ptr<std::int8_t>();
  const auto *scales = made.scales.const_data_ptr<float>(), *wanted = values.const_data_ptr<float>();
  const auto* zero_points = made.zero_points.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < range.numel; ++i) {
    const std::int64_t group = (range.offset + i) / layout.size() - layout.first_group(range);
    const std::string fault = fault_of(planned.plan, codes[i], scales[group], zero_points[group], wanted[i]);
    expect_right(fault, planned, range.offset + i, what);
  }
}

void check_codes(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const Planned& planned : compression.parameters_with_codes()) {
    auto tried = odd_values(random, planned);
    tried.insert(tried.begin(), {"random values", random_weights(random, planned.numel())});
    for (const auto& [what, values] : tried) {
      const std::vector<double> statistics = compression.statistics(planned, values, {planned.whole()});
      const at::Tensor made = compression.transform(planned, values, planned.whole(), statistics);
      for (const Range& piece : pieces_of(planned, random)) {
        check_codes_of(planned, piece, compression.encode(planned, values, piece, statistics),
                       made.narrow(0, piece.offset, piece.numel), what);
      }
    }
  }
}

void check_states(const Context& context, const ComponentManifest& component) {
  CompressionUnderTest one(context, component), other(context, component);
  auto random = context.random();
  std::map<std::string, at::Tensor> masters, others;
  bool any = false;
  for (const Planned& planned : one.parameters()) {
    masters[planned.name] = random_weights(random, planned.numel());
    others[planned.name] = random_weights(random, planned.numel());
    any = any || !planned.plan.states.empty();
  }
  if (!any) throw Skip("its plan has no states.");
  const auto made = one.prepare(masters);
  one.prepare(others);
  const auto again = one.prepare(masters), elsewhere = other.prepare(masters);
  for (const auto& [name, states] : made) {
    for (std::size_t i = 0; i < states.size(); ++i) {
      expect(
          same_values(states[i], again.at(name)[i]) && same_values(states[i], elsewhere.at(name)[i]),
          "prepare makes other states of the same initial values a second time, or in another instance: a rank, or a "
          "run that begins from other weights, would not agree ('" +
              name + "').");
    }
  }
}

void check_gradients(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const Planned& planned : compression.parameters_with_gradients()) {
    const at::Tensor values = random_weights(random, planned.numel());
    const at::Tensor gradient = random_weights(random, planned.numel(), 1e-3f);
    const std::vector<at::Tensor> made = compression.gradient(planned, values, gradient);
    const std::vector<at::Tensor> doubled = compression.gradient(planned, values, gradient.add(gradient));
    for (std::size_t i = 0; i < made.size(); ++i) {
      expect(
          at::isfinite(made[i]).all().item<bool>(),
          "gradient" + of(planned) + " makes no finite numbers of finite ones, or leaves that of a trained state out.");
      expect(same_values(made[i].add(made[i]), doubled[i]),
             "gradient" + of(planned) + " of twice the gradient is not twice as much: loss scales would change it.");
    }
  }
}

/// The calls themselves look at what they may write: here all of them, on all parameters.
void check_writes(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  for (const Planned& planned : compression.parameters()) {
    const at::Tensor values = random_weights(random, planned.numel());
    for (const Range& piece : pieces_of(planned, random)) {
      const std::vector<double> statistics = compression.statistics(planned, values, {planned.whole()});
      const at::Tensor made = compression.transform(planned, values, piece, statistics);
      expect(!made.isnan().any().item<bool>(), "transform" + of(planned) + " leaves some of `values` as they were.");
      if (planned.plan.bits > 0) compression.encode(planned, values, piece, statistics);
    }
  }
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const CompressionUnderTest compression(context, component);
  auto random = context.random();
  const std::vector<Planned> parameters = compression.parameters();
  const Planned& planned = *std::min_element(parameters.begin(), parameters.end(),
                                             [](const auto& a, const auto& b) { return a.numel() < b.numel(); });
  const at::Tensor values = random_weights(random, planned.numel());
  expect_no_leak(planned.plan.bits > 0 ? "measure, transform and encode" : "measure and transform", [&] {
    const std::vector<double> statistics = compression.statistics(planned, values, {planned.whole()});
    compression.transform(planned, values, planned.whole(), statistics);
    if (planned.plan.bits > 0) compression.encode(planned, values, planned.whole(), statistics);
  });
}

}  // namespace

Cases compression_cases(const ComponentManifest& component) {
  const std::string prefix = "compression/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "plan", "Its plan fits the model, is the same each time, and asks for functions that it has.",
       bound(check_plan)},
      {prefix + "active", "Whether it acts is a function of the number of updates.", bound(check_active)},
      {prefix + "pieces", "A parameter gives the same bits, however it is cut at multiples of 32,768 elements.",
       bound(check_pieces)},
      {prefix + "statistics", "What it knows of other elements, it knows by the joined statistics.",
       bound(check_statistics)},
      {prefix + "in_place", "Values may be made in the memory of their input.", bound(check_in_place)},
      {prefix + "writes", "It fills what it is given to fill, and writes nothing else.", bound(check_writes)},
      {prefix + "finite", "Finite values become finite values: zeros, constants, tiny and large ones.",
       bound(check_finite)},
      {prefix + "codes", "Codes have their bits, and (code - zero point) * scale is what transform makes.",
       bound(check_codes)},
      {prefix + "states", "States are a function of the initial values.", bound(check_states)},
      {prefix + "gradient", "What is made of a gradient is finite, whole, and scales with it.", bound(check_gradients)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
