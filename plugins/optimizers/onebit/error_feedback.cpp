#include "plugins/optimizers/onebit/error_feedback.hpp"

#include <numeric>

namespace capstan::optimizers {

void ErrorFeedback::begin(const sdk::Slots& slots, const sdk::Step& step,
                          const std::function<bool(const sdk::Slot&)>& takes_part) {
  worker_ = device_.model_state(step, kWorkerError);
  server_ = device_.model_state(step, kServerError);
  if (buckets_) {
    buckets_->check(slots);
  } else {
    buckets_.emplace(device_, slots, step.collectives(), each_, over_, takes_part);
    squares_ = device_.array<double>(buckets_->count());
    zero_squares();
  }
  if (!loaded_layout_) return;
  const bool fits = *loaded_layout_ == buckets_->layout();
  loaded_layout_.reset();
  if (fits) return;
  zero_errors();
  // The engine has told already when the number of processes differs.
  if (host_.rank() == 0 && loaded_world_size_ == static_cast<std::int64_t>(host_.world_size())) {
    host_.info(type_ + ": the errors of the compression restart at zero; they were saved for other groups.");
  }
}

void ErrorFeedback::load(const sdk::Document& saved) {
  loaded_layout_.reset();
  if (!saved.has("errors")) return;
  loaded_layout_ = saved.text("errors");
  loaded_world_size_ = saved.integer("/errors/world_size");
}

void ErrorFeedback::exchange(const sdk::Step& step) {
  std::vector<std::size_t> all(buckets_->count());
  std::iota(all.begin(), all.end(), std::size_t{0});
  exchange(step, all);
}

void ErrorFeedback::exchange(const sdk::Step& step, std::span<const std::size_t> active) {
  buckets_->exchange().exchange(step.collectives(), active, squares_.data(), worker_, server_);
  zero_squares();
#ifdef CAPSTAN_FORGET_ERRORS  // what bench/optimizers/convergence compares with
  zero_errors();
#endif
}

void ErrorFeedback::zero_errors() {
  device_.kernels().fill(worker_, buckets_->exchange().worker_error_size(), 0.0f);
  device_.kernels().fill(server_, buckets_->exchange().server_error_size(), 0.0f);
}

void ErrorFeedback::zero_squares() { device_.kernels().zero(squares_.data(), squares_.size() * sizeof(double)); }

}  // namespace capstan::optimizers
