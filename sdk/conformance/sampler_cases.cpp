#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

using Samples = std::vector<std::int64_t>;

constexpr std::int64_t kSamples = 1000, kBatch = 24, kSteps = 60;

/// A component that has been started on data of a thousand samples, if it can be: some need files of the data.
class SamplerUnderTest {
 public:
  SamplerUnderTest(const Context& context, const ComponentManifest& manifest, std::uint64_t seed = 7)
      : component_(context, manifest) {
    capstan_sampling sampling{};
    sampling.struct_size = sizeof sampling;
    sampling.samples = kSamples;
    sampling.batch = kBatch;
    sampling.seed = seed;
    sampling.fingerprint = as_str(kFingerprint);
    capstan_error error;
    if (table()->start(component_.self(), &sampling, &error) == CAPSTAN_OK) return;
    throw Skip("it does not start on just any data: " + error.text);
  }

  Samples next(std::int64_t step) const {
    Samples samples(kBatch, -1);
    must("next of step " + std::to_string(step),
         [&](capstan_error* error) { return table()->next(component_.self(), step, samples.data(), error); });
    return samples;
  }
  std::vector<Samples> steps(std::int64_t from, std::int64_t to) const {
    std::vector<Samples> all;
    for (std::int64_t step = from; step < to; ++step) all.push_back(next(step));
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
  static constexpr std::string_view kFingerprint = "conformance";
  const capstan_sampler* table() const { return component_.vtable<capstan_sampler>(); }
  ComponentUnderTest component_;
};

void check_samples(const Context& context, const ComponentManifest& component) {
  const SamplerUnderTest sampler(context, component);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (const std::int64_t sample : sampler.next(step)) {
      expect(sample >= 0 && sample < kSamples, "step " + std::to_string(step) + " has sample " +
                                                   std::to_string(sample) + ", or none, and there are " +
                                                   std::to_string(kSamples) + ".");
    }
  }
}

void check_ranks(const Context& context, const ComponentManifest& component) {
  const SamplerUnderTest first(context, component), second(context, component);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    expect(first.next(step) == second.next(step),
           "two instances, as two ranks have them, give two orders in step " + std::to_string(step) + ".");
  }
}

void check_resume(const Context& context, const ComponentManifest& component) {
  const SamplerUnderTest straight(context, component), stopped(context, component), resumed(context, component);
  const std::vector<Samples> wanted = straight.steps(0, kSteps);
  stopped.steps(0, kSteps / 2);
  if (stopped.saves()) resumed.load(stopped.save());
  expect(resumed.steps(kSteps / 2, kSteps) == std::vector<Samples>(wanted.begin() + kSteps / 2, wanted.end()),
         "saved and loaded, a run goes on with other samples.");
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const SamplerUnderTest sampler(context, component);
  std::int64_t step = 0;
  expect_no_leak("next", [&] { sampler.next(step++); });
}

}  // namespace

Cases sampler_cases(const ComponentManifest& component) {
  const std::string prefix = "sampler/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "samples", "A step has as many samples as it is to have, all of them of the data.",
       bound(check_samples)},
      {prefix + "ranks", "Every rank finds the same samples.", bound(check_ranks)},
      {prefix + "resume", "Saved and loaded, a run goes on with the samples that it would have had.",
       bound(check_resume)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
