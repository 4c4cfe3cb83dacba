// The first token of a sample, and every way to get it wrong.
#include "capstan/sdk/metric.hpp"

#include <atomic>

#include "bad.hpp"
#include "capstan/sdk/tensor.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

std::atomic<int> instances;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) : instance_(++instances) { create_badly(params); }

  sdk::MetricPlan start(const sdk::Document&) {
    if (breaks("plan")) return {0, {"not\"json"}};
    if (breaks("plan_needs")) return {0, {"total_vocab_freq"}};
    return {};
  }

  void measure(const sdk::Batch& batch, std::size_t count, std::int64_t* out) const {
    leak_in_call();
    const capstan_tensor tokens = batch.tensor("input_ids");
    const auto* values = static_cast<const std::int64_t*>(sdk::values_of(tokens).data);
    const auto length = static_cast<std::size_t>(sdk::shape_of(tokens)[1]);
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = values[i * length] + static_cast<std::int64_t>(breaks("batches") ? count : 0);
      if (breaks("again")) out[i] += ++calls_;
      if (breaks("again_instance")) out[i] += instance_;
    }
    if (breaks("plan_beyond")) out[count] = 7;
  }

 private:
  int instance_;
  mutable std::int64_t calls_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::metric<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
