// Momentum, and every way to get it wrong.
#include "capstan/sdk/optimizer.hpp"

#include <cmath>
#include <map>
#include <vector>

#include "bad.hpp"
#include "capstan/sdk/floats.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) {
    create_badly(params);
    lr_ = params.number("lr");
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    ++calls_;
    leak_in_call();
    for (const sdk::Slot slot : slots) update(slot, step);
  }

 private:
  void update(const sdk::Slot& slot, const sdk::Step& step) {
    if (breaks("refuse")) slot.fail("Bad updates float32 parameters; this one is bfloat16.");
    float* weights = slot.param();
    float* means = static_cast<float*>(slot.state(0).data);
    if (breaks("state_bounds")) means = slot.floats(1);
    const sdk::Values gradients = slot.grad();
    double rate = breaks("zero_rate") ? lr_ : step.group(slot.group()).number("lr");
    if (breaks("several_calls")) rate *= calls_;
    if (breaks("quadratic")) rate = -rate;
    if (breaks("deterministic")) {
      static int updates = 0;
      rate *= 1 + 1e-3 * ++updates;
    }
    std::vector<float>& hidden = hidden_[std::string(slot.name())];
    if (hidden.empty()) hidden.resize(slot.numel());
    if (breaks("state_round_trip")) means = hidden.data();
    const float scale = breaks("grad_scale") ? 1.0f : static_cast<float>(step.grad_scale());
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      float gradient = breaks("gradient_dtypes") && gradients.dtype == sdk::Dtype::kFloat16
                           ? sdk::from_bfloat16(static_cast<const std::uint16_t*>(gradients.data)[i])
                           : sdk::value_at(gradients, i);
      gradient *= scale;
      if (breaks("nan_gradient") && std::isnan(gradient)) std::abort();
      if (breaks("zero_gradient")) gradient /= std::fabs(gradient);
      if (breaks("finite")) gradient /= 0.0f;
      if (breaks("shard_invariance") && i % 2) gradient = 0;
      means[i] = 0.9f * means[i] + gradient;
      weights[i] -= static_cast<float>(rate) * means[i];
    }
    if (breaks("guards")) weights[slot.numel()] = 0;
    write_compute(slot, weights);
  }

  static void write_compute(const sdk::Slot& slot, const float* weights) {
    const sdk::Values compute = slot.compute();
    if (!compute.data || compute.dtype != sdk::Dtype::kBFloat16) return;
    auto* out = static_cast<std::uint16_t*>(compute.data);
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      out[i] = breaks("compute_copy") ? static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weights[i]) >> 16)
                                      : sdk::to_bfloat16(weights[i]);
    }
    slot.mark_compute_written();
  }

  double lr_ = 0;
  int calls_ = 0;
  std::map<std::string, std::vector<float>> hidden_;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::optimizer<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
