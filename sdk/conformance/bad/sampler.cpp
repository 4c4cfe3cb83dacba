// Samples in their order, and every way to get it wrong.
#include "capstan/sdk/sampler.hpp"

#include <atomic>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

std::atomic<int> instances;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) : instance_(++instances) { create_badly(params); }

  void start(const sdk::Sampling& sampling) { samples_ = sampling.samples(); }

  void next(std::int64_t, std::span<std::int64_t> samples) {
    leak_in_call();
    for (std::int64_t& sample : samples) sample = next_++ % samples_;
    if (breaks("samples")) samples.back() = samples_;
    if (breaks("samples_few")) samples.back() = -1;
    if (breaks("ranks")) samples.front() = (samples.front() + instance_) % samples_;
  }

  void save(const sdk::Sink& sink) { sink.write("{\"next\": " + std::to_string(next_) + "}"); }
  void load(const sdk::Document& saved) {
    if (!breaks("resume")) next_ = saved.integer("next");
  }

 private:
  int instance_;
  std::int64_t samples_ = 1, next_ = 0;
};

constexpr capstan_component kBad = with_raw_create<sdk::SizedSampler<Bad>>(sdk::sampler<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
