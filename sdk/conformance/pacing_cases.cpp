#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

constexpr const char* kMetrics[] = {"seqlen", "vocab_rarity"};

class PacingUnderTest {
 public:
  PacingUnderTest(const Context& context, const ComponentManifest& manifest) : component_(context, manifest) {}

  std::int64_t difficulty(const std::string& metric, std::int64_t step) const {
    std::int64_t value = -1;
    must("difficulty of '" + metric + "' in step " + std::to_string(step), [&](capstan_error* error) {
      return component_.vtable<capstan_pacing>()->difficulty(component_.self(), as_str(metric), step, &value, error);
    });
    return value;
  }

 private:
  ComponentUnderTest component_;
};

void check_range(const Context& context, const ComponentManifest& component) {
  const PacingUnderTest pacing(context, component);
  for (const std::string metric : kMetrics) {
    for (const std::int64_t step : {1, 2, 3, 100, 10'000, 1'000'000, 1'000'000'000}) {
      const std::int64_t value = pacing.difficulty(metric, step);
      expect(value >= 0, "the difficulty of '" + metric + "' in step " + std::to_string(step) + " is " +
                             std::to_string(value) + ", below 0, or is not written.");
    }
  }
}

void check_pure(const Context& context, const ComponentManifest& component) {
  const PacingUnderTest forward(context, component), backward(context, component);
  constexpr std::int64_t kSteps = 300;
  std::vector<std::int64_t> values;
  for (std::int64_t step = 1; step <= kSteps; ++step) values.push_back(forward.difficulty(kMetrics[0], step));
  for (std::int64_t step = kSteps; step >= 1; --step) {
    expect(backward.difficulty(kMetrics[0], step) == values[static_cast<std::size_t>(step - 1)],
           "the difficulty of step " + std::to_string(step) + " depends on which steps were asked for before.");
  }
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const PacingUnderTest pacing(context, component);
  std::int64_t step = 0;
  expect_no_leak("difficulty", [&] { pacing.difficulty(kMetrics[0], ++step); });
}

}  // namespace

Cases pacing_cases(const ComponentManifest& component) {
  const std::string prefix = "pacing/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "range", "Difficulties are written and not negative, however far a run goes.", bound(check_range)},
      {prefix + "pure", "A step has one difficulty, in whatever order steps are asked for.", bound(check_pure)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
