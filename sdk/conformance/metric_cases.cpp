#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <utility>

#include "core/model/batch.hpp"
#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

constexpr std::int64_t kTokens = 8, kVocabulary = 64, kGuard = 0x5EED;

/// Samples with tokens of their own.
Batch samples_of(const std::vector<std::int64_t>& samples) {
  Batch batch;
  const auto rows = static_cast<std::int64_t>(samples.size());
  for (const auto& [name, shift] : {std::pair("input_ids", 0), std::pair("labels", 1)}) {
    at::Tensor tokens = at::empty({rows, kTokens}, at::kLong);
    auto* out = tokens.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t sample : samples) {
      for (std::int64_t i = 0; i < kTokens; ++i) *out++ = ((i + shift) * (sample + 3) + sample) % kVocabulary;
    }
    batch.tensors.emplace(name, std::move(tokens));
  }
  return batch;
}

class MetricUnderTest {
 public:
  MetricUnderTest(const Context& context, const ComponentManifest& manifest) : component_(context, manifest) {
    capstan_sink sink;
    const std::string source = R"({"samples": 100, "sequence_length": 8, "vocabulary": 64, "fingerprint": "kit"})";
    must("start",
         [&](capstan_error* error) { return table()->start(component_.self(), as_str(source), &sink, error); });
    Json plan;
    try {
      plan = Json::parse(sink.text);
    } catch (const std::exception& error) {
      throw Broken(std::string("start does not answer JSON: ") + error.what());
    }
    if (const Json* width = plan.find("width")) {
      expect(width->is_integer() && width->as_integer() >= 0,
             "\"width\" must be a whole number, got " + width->dump() + ".");
      width_ = static_cast<std::size_t>(width->as_integer());
    }
    const Json* needs = plan.find("needs");
    if (needs == nullptr) return;
    expect(needs->is_array(), "\"needs\" must be a list of names, got " + needs->dump() + ".");
    std::vector<std::int64_t> totals(kVocabulary);
    std::iota(totals.begin(), totals.end(), 0);
    for (const Json& name : needs->as_array()) {
      expect(CAPSTAN_HAS(table(), totals), "it needs sums, and has no function totals.");
      must("totals", [&](capstan_error* error) {
        return table()->totals(component_.self(), as_str(name.as_string()), totals.data(), totals.size(), error);
      });
    }
  }

  bool sums() const { return width_ > 0; }

  /// What measure() adds to zeros. Throws Broken where it writes beyond.
  std::vector<std::int64_t> measure(const std::vector<std::int64_t>& samples) const {
    const std::size_t count = sums() ? width_ : samples.size();
    std::vector<std::int64_t> out(count + 1);
    out.back() = kGuard;
    Batch batch = samples_of(samples);
    must("measure", [&](capstan_error* error) {
      return table()->measure(component_.self(), &batch, samples.size(), out.data(), error);
    });
    expect(out.back() == kGuard, "measure writes beyond its numbers.");
    out.pop_back();
    return out;
  }

 private:
  const capstan_sample_metric* table() const { return component_.vtable<capstan_sample_metric>(); }

  ComponentUnderTest component_;
  std::size_t width_ = 0;
};

const std::vector<std::int64_t> kSamples = {5, 0, 9, 5, 31};

void check_plan(const Context& context, const ComponentManifest& component) {
  MetricUnderTest(context, component).measure(kSamples);
}

void check_batches(const Context& context, const ComponentManifest& component) {
  const MetricUnderTest metric(context, component);
  const std::vector<std::int64_t> together = metric.measure(kSamples);
  std::vector<std::int64_t> one_by_one(metric.sums() ? together.size() : 0);
  for (const std::int64_t sample : kSamples) {
    const std::vector<std::int64_t> alone = metric.measure({sample});
    if (!metric.sums()) {
      one_by_one.push_back(alone[0]);
      continue;
    }
    for (std::size_t i = 0; i < alone.size(); ++i) one_by_one[i] += alone[i];
  }
  expect(together == one_by_one, "the numbers of samples depend on which others are measured with them.");
}

void check_again(const Context& context, const ComponentManifest& component) {
  const MetricUnderTest first(context, component), second(context, component);
  const std::vector<std::int64_t> before = first.measure(kSamples);
  first.measure({1, 2});
  expect(first.measure(kSamples) == before, "the numbers of samples change when they are measured again.");
  expect(second.measure(kSamples) == before, "two instances measure two things.");
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const MetricUnderTest metric(context, component);
  expect_no_leak("measure", [&] { metric.measure(kSamples); });
}

}  // namespace

Cases metric_cases(const ComponentManifest& component) {
  const std::string prefix = "metric/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "plan", "It tells how many numbers it measures, and writes so many.", bound(check_plan)},
      {prefix + "batches", "A sample has its numbers whatever it is measured with.", bound(check_batches)},
      {prefix + "again", "A sample has its numbers whenever, and by whatever instance, it is measured.",
       bound(check_again)},
      {prefix + "calls_leak", "Calls keep no memory, however many an analysis makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
