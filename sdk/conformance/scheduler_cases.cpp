#include <cmath>

#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

constexpr std::uint32_t kGroups = 1;
constexpr double kBaseRate = 1e-3;

class SchedulerUnderTest {
 public:
  SchedulerUnderTest(const Context& context, const ComponentManifest& manifest) : component_(context, manifest) {
    const auto* table = component_.vtable<capstan_scheduler>();
    if (!CAPSTAN_HAS(table, start)) return;
    const double rates[kGroups] = {kBaseRate}, betas[] = {0.9, 0.999};
    capstan_schedule_start start{};
    start.struct_size = sizeof start;
    start.group_count = kGroups;
    start.base_lrs = rates;
    start.optimizer_has_betas = 1;
    start.betas = betas;
    must("start", [&](capstan_error* error) { return table->start(component_.self(), &start, error); });
  }

  double rate(std::int64_t index) const {
    const auto* table = component_.vtable<capstan_scheduler>();
    double rate = std::nan("");
    must("rate of update " + std::to_string(index),
         [&](capstan_error* error) { return table->rate(component_.self(), index, 0, kBaseRate, &rate, error); });
    return rate;
  }

  /// Momentum of an update, as the engine asks; the configured betas where there is none.
  std::pair<double, double> betas(std::int64_t index) const {
    const auto* table = component_.vtable<capstan_scheduler>();
    double betas[2] = {0.9, 0.999};
    if (CAPSTAN_HAS(table, momentum)) {
      must("momentum of update " + std::to_string(index),
           [&](capstan_error* error) { return table->momentum(component_.self(), index, 0, betas, error); });
    }
    return {betas[0], betas[1]};
  }

  std::string save() const {
    const auto* table = component_.vtable<capstan_scheduler>();
    if (!CAPSTAN_HAS(table, save)) return "{}";
    capstan_sink sink;
    must("save", [&](capstan_error* error) { return table->save(component_.self(), &sink, error); });
    return sink.text;
  }

  void load(const std::string& saved) {
    const auto* table = component_.vtable<capstan_scheduler>();
    if (!CAPSTAN_HAS(table, load)) return;
    must("load", [&](capstan_error* error) { return table->load(component_.self(), as_str(saved), error); });
  }

 private:
  ComponentUnderTest component_;
};

void check_finite(const Context& context, const ComponentManifest& component) {
  const SchedulerUnderTest schedule(context, component);
  std::vector<std::int64_t> indices = {10'000, 1'000'000, 1'000'000'000'000};
  for (std::int64_t i = 0; i < 2000; ++i) indices.push_back(i);
  for (const std::int64_t index : indices) {
    const double rate = schedule.rate(index);
    expect(std::isfinite(rate) && rate >= 0,
           "the rate of update " + std::to_string(index) + " is " + std::to_string(rate) + ".");
    const auto [beta1, beta2] = schedule.betas(index);
    expect(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
           "the betas of update " + std::to_string(index) + " are " + std::to_string(beta1) + " and " +
               std::to_string(beta2) + ", and each must be from 0 to below 1.");
  }
}

void check_pure(const Context& context, const ComponentManifest& component) {
  const SchedulerUnderTest schedule(context, component);
  for (std::int64_t index = 0; index < 500; ++index) {
    expect(schedule.rate(index) == schedule.rate(index) && schedule.betas(index) == schedule.betas(index),
           "the rate of update " + std::to_string(index) + " changes when it is asked for again.");
  }
}

void check_order(const Context& context, const ComponentManifest& component) {
  const SchedulerUnderTest forward(context, component), mixed(context, component);
  std::vector<double> rates;
  for (std::int64_t index = 0; index < 500; ++index) rates.push_back(forward.rate(index));
  auto random = context.random();
  for (int i = 0; i < 2000; ++i) {
    const auto index = static_cast<std::int64_t>(random() % rates.size());
    expect(mixed.rate(index) == rates[static_cast<std::size_t>(index)],
           "the rate of update " + std::to_string(index) + " depends on which updates were asked for before.");
  }
}

void check_resume(const Context& context, const ComponentManifest& component) {
  const SchedulerUnderTest straight(context, component);
  SchedulerUnderTest resumed(context, component);
  for (std::int64_t index = 0; index < 100; ++index) straight.rate(index);
  const std::string saved = straight.save();
  Json::parse(saved.empty() ? "{}" : saved);
  resumed.load(saved);
  for (std::int64_t index = 100; index < 300; ++index) {
    expect(resumed.rate(index) == straight.rate(index) && resumed.betas(index) == straight.betas(index),
           "a new instance gives update " + std::to_string(index) + " another rate.");
  }
}

void check_rate_leak(const Context& context, const ComponentManifest& component) {
  const SchedulerUnderTest schedule(context, component);
  std::int64_t index = 0;
  expect_no_leak("rate", [&] {
    schedule.rate(++index);
    schedule.betas(index);
  });
}

}  // namespace

Cases scheduler_cases(const ComponentManifest& component) {
  const std::string prefix = "scheduler/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "finite", "Rates are finite and not negative, betas from 0 to below 1, however far a run goes.",
       bound(check_finite)},
      {prefix + "pure", "The same update has the same rate, however often it is asked for.", bound(check_pure)},
      {prefix + "any_order", "Updates may be asked for in any order.", bound(check_order)},
      {prefix + "resume", "A new instance goes on where the old one was.", bound(check_resume)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_rate_leak)},
  };
}

}  // namespace capstan::conformance
