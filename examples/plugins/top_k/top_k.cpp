// Top-k compression with error feedback (Lin et al. 2018): every rank adds its gradient to what it has not sent yet,
// and sends the largest elements of that.
#include <algorithm>
#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/optimizer.hpp>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

namespace sdk = capstan::sdk;

class TopKSGD {
 public:
  TopKSGD(const sdk::Host& host, const sdk::Params& params)
      : world_size_(host.world_size()),
        warmup_steps_(params.integer("warmup_steps")),
        density_(params.number("density")) {}

  /// Once gradients are compressed here, the engine need not average them.
  sdk::GradientMode gradient_mode(std::int64_t update_index) const {
    return compresses(update_index) ? sdk::GradientMode::kLocal : sdk::GradientMode::kMean;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    float* error = step.model_state(0);  // the errors of all parameters, one after the other
    for (const sdk::Slot slot : slots) {
      const auto count = static_cast<std::size_t>(slot.full_numel());
      if (slot.numel() != count) slot.fail("TopKSGD updates whole parameters.");
      mean_.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        mean_[i] = sdk::value_at(slot.grad(), i) * static_cast<float>(step.grad_scale());
      }
      if (compresses(step.update_index())) exchange(step.collectives(), error);
      move(slot, step.group(slot.group()));
      error += count;
    }
  }

 private:
  bool compresses(std::int64_t update_index) const { return world_size_ > 1 && update_index >= warmup_steps_; }

  /// Makes the mean over ranks of what each sends of its gradient, which stands in mean_.
  void exchange(const sdk::Collectives& collectives, float* error) {
    for (std::size_t i = 0; i < mean_.size(); ++i) error[i] += mean_[i];
    const auto sent = static_cast<std::size_t>(std::ceil(density_ * static_cast<double>(mean_.size())));
    std::vector<std::int64_t> places(mean_.size());
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
    const auto larger = [&](std::int64_t a, std::int64_t b) {  // ties go to the first, so that every run picks alike
      const float left = std::fabs(error[a]), right = std::fabs(error[b]);
      return left > right || (left == right && a < b);
    };
    std::partial_sort(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(sent), places.end(), larger);
    places.resize(sent);
    std::vector<float> values;
    for (const std::int64_t place : places) values.push_back(std::exchange(error[place], 0.0f));

    std::vector<std::int64_t> all_places(sent * world_size_);
    std::vector<float> all_values(sent * world_size_);
    collectives.all_gather<std::int64_t>(places, all_places);
    collectives.all_gather<float>(values, all_values);
    std::fill(mean_.begin(), mean_.end(), 0.0f);
    for (std::size_t i = 0; i < all_places.size(); ++i) {
      mean_[static_cast<std::size_t>(all_places[i])] += all_values[i] / static_cast<float>(world_size_);
    }
  }

  void move(const sdk::Slot& slot, const sdk::Group& group) {
    const auto lr = static_cast<float>(group.number("lr")), momentum = static_cast<float>(group.number("momentum"));
    float *weights = slot.param(), *sums = slot.floats(0);
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      sums[i] = momentum * sums[i] + mean_[i];
      weights[i] -= lr * sums[i];
    }
  }

  std::size_t world_size_;
  std::int64_t warmup_steps_;
  double density_;
  std::vector<float> mean_;  // the mean gradient of one parameter at a time
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<TopKSGD, "TopKSGD">)
