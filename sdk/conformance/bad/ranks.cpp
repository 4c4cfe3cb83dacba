// Momentum on gradients that it averages itself, in two levels of ranks, and the ways to get that wrong.
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bad.hpp"
#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/optimizer.hpp"

namespace {

namespace sdk = capstan::sdk;

class BadRanks {
 public:
  BadRanks(const sdk::Host& host, const sdk::Params&) : rank_(host.rank()) {}

  sdk::GradientMode gradient_mode(std::int64_t) {
    if (breaks("no_mode")) return static_cast<sdk::GradientMode>(2);
    const bool odd = ++asked_ % 2 != 0;
    return breaks("gradient_mode") && odd ? sdk::GradientMode::kMean : sdk::GradientMode::kLocal;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto collectives = step.collectives();
    for (const sdk::Slot slot : slots) {
      if (breaks("calls") && rank_ == 1) break;
      std::vector<float> gradients(slot.numel());
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] = sdk::value_at(slot.grad(), i) * static_cast<float>(step.grad_scale());
      }
      if (!breaks("ranks_agree")) sum(collectives, gradients);
      std::vector<float>& hidden = hidden_[std::string(slot.name())];
      hidden.resize(slot.numel());
      float* means = breaks("ranks_resume") ? hidden.data() : slot.floats(0);
      const auto lr = static_cast<float>(step.group(slot.group()).number("lr"));
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        means[i] = 0.9f * means[i] + gradients[i] / static_cast<float>(collectives.world_size());
        slot.param()[i] -= lr * means[i];
      }
    }
  }

 private:
  /// Within pairs of ranks, then between the pairs.
  void sum(const sdk::Collectives& collectives, std::span<float> values) const {
    const auto pair = collectives.split(rank_ / 2);
    pair.all_reduce_sum(values);
    collectives.split(static_cast<std::uint32_t>(pair.rank())).all_reduce_sum(values);
    pair.broadcast(values, 0);  // with an odd number of ranks the second ones have not met them all
  }

  std::uint32_t rank_;
  int asked_ = 0;
  std::map<std::string, std::vector<float>> hidden_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<BadRanks, "Bad">)
