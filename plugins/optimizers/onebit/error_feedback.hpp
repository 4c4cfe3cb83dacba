#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/optimizers/onebit/buckets.hpp"
#include "plugins/optimizers/onebit/settings.hpp"

namespace capstan::optimizers {

/// The compressed exchange of an optimizer: buckets made from its first slots, errors in the states of the model, and
/// what a checkpoint must know to take the errors up again.
class ErrorFeedback {
 public:
  /// States of the manifest with `extent = "model"`, in this order.
  enum State : std::size_t { kWorkerError, kServerError };

  /// `device` must live as long.
  ErrorFeedback(std::string_view type, Device& device, const sdk::Host& host, const sdk::Params& params,
                Buckets::Each each)
      : type_(type), device_(device), host_(host), each_(each), over_(carrier(device, params)) {}

  /// Before anything else in an update or synchronisation that exchanges: makes the buckets, and restarts errors at
  /// zero that belong to other ones.
  void begin(
      const sdk::Slots& slots, const sdk::Step& step,
      const std::function<bool(const sdk::Slot&)>& takes_part = [](const sdk::Slot&) { return true; });
  Buckets& buckets() { return *buckets_; }

  /// The errors at a slot's first element.
  float* worker_error(std::size_t slot) { return worker_ + buckets_->error_offset(slot); }
  /// What the squares of a slot's buffer are to be added to, in the device's memory.
  double* squares(std::size_t slot) { return squares_.data() + buckets_->buffer(slot); }
  /// All buffers, or those listed; afterwards the squares are 0 again.
  void exchange(const sdk::Step& step);
  void exchange(const sdk::Step& step, std::span<const std::size_t> active);
  void zero_errors();

  /// A JSON value for save(), and what load() does with it.
  std::string saved() const { return buckets_ ? buckets_->layout() : "null"; }
  void load(const sdk::Document& saved);

 private:
  void zero_squares();

  std::string type_;
  Device& device_;
  sdk::Host host_;
  Buckets::Each each_;
  CompressedAllReduce::Over over_;
  std::optional<Buckets> buckets_;
  std::optional<std::string> loaded_layout_;
  std::int64_t loaded_world_size_ = 0;
  sdk::Array<double> squares_;
  float* worker_ = nullptr;
  float* server_ = nullptr;
};

}  // namespace capstan::optimizers
