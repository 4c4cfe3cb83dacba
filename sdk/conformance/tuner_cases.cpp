#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

constexpr std::size_t kFeatures = 3, kSide = 4, kPoints = kSide * kSide * kSide, kBudget = 24;

/// A grid of points whose cost is least in a corner, and a tuner that has been started on it.
class TunerUnderTest {
 public:
  TunerUnderTest(const Context& context, const ComponentManifest& manifest, std::uint64_t seed = 7)
      : component_(context, manifest) {
    std::vector<std::string> names;
    std::vector<double> values;
    for (std::size_t point = 0; point < kPoints; ++point) {
      names.push_back("p" + std::to_string(point));
      for (std::size_t feature = 0; feature < kFeatures; ++feature) values.push_back(value(point, feature));
    }
    std::vector<capstan_str> points, features = {as_str("a"), as_str("b"), as_str("c")};
    for (const std::string& name : names) points.push_back(as_str(name));
    capstan_tuning_space space{};
    space.struct_size = sizeof space;
    space.point_count = kPoints;
    space.feature_count = kFeatures;
    space.points = points.data();
    space.features = features.data();
    space.values = values.data();
    space.budget = kBudget;
    space.seed = seed;
    must("start", [&](capstan_error* error) { return table()->start(component_.self(), &space, error); });
  }

  /// What it chooses, as it says it: an empty list when it wants no more.
  std::vector<std::size_t> ask(std::size_t most = 1) const {
    std::vector<double> predictions(kPoints);
    for (std::size_t point = 0; point < kPoints; ++point)
      predictions[point] = cost(point) * (1 + 0.1 * value(point, 0));
    std::vector<std::size_t> points(most + 1, kPoints);
    std::size_t count = most + 1;
    must("ask", [&](capstan_error* error) {
      return table()->ask(component_.self(), predictions.data(), most, points.data(), &count, error);
    });
    expect(count <= most,
           "ask of " + std::to_string(most) + " gave " + std::to_string(count) + " points, or no count.");
    points.resize(count);
    return points;
  }

  void tell(std::size_t point, bool works = true) const {
    capstan_tuning_result result{};
    result.struct_size = sizeof result;
    result.measured = works;
    result.point = point;
    result.cost = works ? cost(point) : std::numeric_limits<double>::quiet_NaN();
    must("tell", [&](capstan_error* error) { return table()->tell(component_.self(), &result, error); });
  }

  /// Asks and tells `steps` times; every third trial fails where `some_fail`.
  std::vector<std::size_t> steps(std::size_t steps, bool some_fail = false, std::size_t most = 1) const {
    std::vector<std::size_t> all;
    for (std::size_t step = 0; step < steps; ++step) {
      for (const std::size_t point : ask(most)) {
        all.push_back(point);
        if (point < kPoints) tell(point, !some_fail || point % 3 != 0);
      }
    }
    return all;
  }

  bool saves() const { return CAPSTAN_HAS(table(), save) && CAPSTAN_HAS(table(), load); }
  std::string save() const {
    capstan_sink sink;
    must("save", [&](capstan_error* error) { return table()->save(component_.self(), &sink, error); });
    return sink.text;
  }
  void load(const std::string& saved) const {
    must("load", [&](capstan_error* error) { return table()->load(component_.self(), as_str(saved), error); });
  }

 private:
  static double value(std::size_t point, std::size_t feature) {
    for (std::size_t i = 0; i < feature; ++i) point /= kSide;
    return static_cast<double>(point % kSide);
  }
  static double cost(std::size_t point) {
    return 1 + value(point, 0) + 0.5 * std::abs(value(point, 1) - 2) + 0.25 * value(point, 2);
  }

  const capstan_tuner* table() const { return component_.vtable<capstan_tuner>(); }
  ComponentUnderTest component_;
};

void expect_each_once(const std::vector<std::size_t>& points) {
  std::set<std::size_t> seen;
  for (const std::size_t point : points) {
    expect(point < kPoints,
           "it chose point " + std::to_string(point) + ", and there are " + std::to_string(kPoints) + ", from 0 on.");
    expect(seen.insert(point).second, "it chose point " + std::to_string(point) + " twice.");
  }
}

void check_points(const Context& context, const ComponentManifest& component) {
  const TunerUnderTest tuner(context, component);
  const std::vector<std::size_t> points = tuner.steps(2 * kPoints);
  expect(!points.empty(), "it chose no point at all.");
  expect_each_once(points);
  expect_each_once(TunerUnderTest(context, component).steps(kPoints, false, 3));
}

void check_failures(const Context& context, const ComponentManifest& component) {
  expect_each_once(TunerUnderTest(context, component).steps(kPoints, /*some_fail=*/true));
}

void check_repeats(const Context& context, const ComponentManifest& component) {
  expect(TunerUnderTest(context, component).steps(kBudget) == TunerUnderTest(context, component).steps(kBudget),
         "the same space, seed and costs gave other points.");
}

void check_resume(const Context& context, const ComponentManifest& component) {
  const TunerUnderTest straight(context, component), stopped(context, component), resumed(context, component);
  if (!straight.saves()) throw Skip("it has no save and load: a search that was stopped tells it everything again.");
  const std::vector<std::size_t> wanted = straight.steps(kBudget);
  stopped.steps(kBudget / 2);
  resumed.load(stopped.save());
  const std::vector<std::size_t> rest(
      wanted.begin() + static_cast<std::ptrdiff_t>(std::min(wanted.size(), kBudget / 2)), wanted.end());
  expect(resumed.steps(kBudget - kBudget / 2) == rest, "saved and loaded, a search goes on with other points.");
}

void check_leak(const Context& context, const ComponentManifest& component) {
  // Each search ends: what is looked at is a search as a whole.
  expect_no_leak("ask", [&] { TunerUnderTest(context, component).steps(2); });
}

}  // namespace

Cases tuner_cases(const ComponentManifest& component) {
  const std::string prefix = "tuner/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "points", "It chooses points that there are, each of them once, and no more than it is asked for.",
       bound(check_points)},
      {prefix + "failures", "Trials that fail do not keep it from going on.", bound(check_failures)},
      {prefix + "repeats", "The same space, seed and costs give the same points.", bound(check_repeats)},
      {prefix + "resume", "Saved and loaded, a search goes on with the points that it would have had.",
       bound(check_resume)},
      {prefix + "calls_leak", "Calls keep no memory, however many a search makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
