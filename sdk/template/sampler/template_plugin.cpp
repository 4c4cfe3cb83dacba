#include "template_plugin.hpp"

#include <capstan/sdk/sampler.hpp>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : block_(params.integer("block")) {}

  void start(const sdk::Sampling& sampling) {
    samples_ = sampling.samples();
    seed_ = sampling.seed();
  }

  // A function of the seed and the step: every rank finds the same, and there is nothing to save.
  void next(std::int64_t step, std::span<std::int64_t> samples) {
    std::int64_t position = step * static_cast<std::int64_t>(samples.size());
    for (std::int64_t& sample : samples) sample = template_plugin_sample(position++, samples_, block_, seed_);
  }

 private:
  std::int64_t block_, samples_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::sampler<TemplatePlugin, "TemplatePlugin">)
