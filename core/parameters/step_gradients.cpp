#include "core/parameters/step_gradients.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/parameters/stored_parts.hpp"

namespace capstan {

StepGradients::StepGradients(GradientOptions options)
    : options_(std::move(options)), has_(options_.parameters.size()), to_update_(options_.parameters.size()) {}

void StepGradients::begin_backward(const std::string&, bool, bool, const std::vector<std::size_t>&) {}
void StepGradients::set_present(const std::vector<std::uint8_t>&) {}
bool StepGradients::stored(std::size_t) const { return false; }
void StepGradients::forget(std::size_t) {}

const std::vector<const at::Tensor*>& StepGradients::collect() {
  present_.clear();
  contiguous_copies_.clear();
  contiguous_copies_.reserve(to_update_.size());
  for (std::size_t i = 0; i < to_update_.size(); ++i) {
    to_update_[i] = nullptr;
    has_[i] = stored(i) && stored_is_wanted(i);
    if (stored(i) || !prepare(i)) continue;
    at::Tensor& gradient = shown(i);
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided) {
      if (!options_.sparse) {
        throw RuntimeFault("parameter '" + options_.names[i] +
                           "': has a sparse gradient, and optimizers update dense ones. Set sparse_gradients, or build "
                           "the embedding with sparse = false.");
      }
      gradient = gradient.to_dense();
    }
    if (gradient.is_contiguous()) {
      to_update_[i] = &gradient;
    } else {
      to_update_[i] = &contiguous_copies_.emplace_back(gradient.contiguous());
    }
    has_[i] = 1;
    present_.push_back(to_update_[i]);
  }
  settle_store();
  return present_;
}

void StepGradients::drop(bool) {
  for (const at::Tensor& parameter : options_.parameters) parameter.mutable_grad().reset();
  std::fill(has_.begin(), has_.end(), 0);
  std::fill(to_update_.begin(), to_update_.end(), nullptr);
}

OneProcessGradients::OneProcessGradients(GradientOptions options)
    : StepGradients(std::move(options)), accumulated_(options_.parameters.size()) {
  if (options_.sparse_rows) rows_.emplace(options_.parameters);
  if (options_.complete) hooks_.emplace(options_.parameters, [this](std::size_t i) { arrived(i); });
}

void OneProcessGradients::begin_backward(const std::string&, bool last, bool, const std::vector<std::size_t>&) {
  last_ = last;
}

void OneProcessGradients::arrived(std::size_t i) {
  if (!last_) return;
  const at::NoGradGuard no_grad;
  if (options_.accumulates_apart) absorb(i);
  const at::Tensor& gradient = shown(i);
  const bool dense = gradient.defined() && gradient.layout() == at::kStrided && gradient.is_contiguous();
  if (dense) options_.complete(i, gradient);
}

at::Tensor& OneProcessGradients::shown(std::size_t i) {
  return accumulated_[i].defined() ? accumulated_[i] : options_.parameters[i].mutable_grad();
}

void OneProcessGradients::end_backward() {
  last_ = false;
  if (!options_.accumulates_apart) return;  // the parameters' own gradients add up
  for (std::size_t i = 0; i < accumulated_.size(); ++i) absorb(i);
}

/// Adds the parameter's own gradient to the sum beside.
void OneProcessGradients::absorb(std::size_t i) {
  at::Tensor& gradient = options_.parameters[i].mutable_grad();
  if (!gradient.defined()) return;
  if (rows_) rows_->note(i, gradient);
  if (gradient.layout() != at::kStrided && options_.sparse) gradient = gradient.to_dense();
  if (accumulated_[i].defined()) {
    accumulated_[i].add_(gradient);
  } else {
    accumulated_[i] = gradient.to(options_.accumulation);
  }
  gradient.reset();
}

void OneProcessGradients::give_zeros(std::size_t i) {
  if (shown(i).defined()) return;
  const at::Tensor& parameter = options_.parameters[i];
  accumulated_[i] = at::zeros(parameter.sizes(), parameter.options().dtype(options_.accumulation));
}

at::Tensor OneProcessGradients::flat(std::size_t i) {
  at::Tensor& gradient = shown(i);
  if (!gradient.defined()) return {};
  if (gradient.layout() != at::kStrided) {
    if (!options_.sparse) return {};  // collect() refuses it
    gradient = gradient.to_dense();
  }
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  return gradient.view({-1});
}

void OneProcessGradients::set(std::size_t i, const at::Tensor& values) {
  at::Tensor& gradient = shown(i);
  const at::Tensor given = values.view(options_.parameters[i].sizes());
  if (!gradient.defined()) {
    accumulated_[i] = given.to(options_.parameters[i].device(), options_.accumulation);
  } else if (gradient.layout() == at::kStrided) {
    gradient.copy_(given);
  } else {
    gradient = given.to(gradient.device(), gradient.scalar_type());
  }
}

bool OneProcessGradients::prepare(std::size_t i) {
  const at::Tensor& gradient = shown(i);
  if (rows_ && gradient.defined() && !accumulated_[i].defined()) rows_->note(i, gradient);
  return true;
}

void OneProcessGradients::drop(bool applied) {
  StepGradients::drop(applied);
  if (rows_) rows_->drop();
  for (at::Tensor& sum : accumulated_) sum.reset();
}

ReducedGradients::ReducedGradients(GradientOptions options, Options reduced)
    : StepGradients(std::move(options)),
      reduced_(std::move(reduced)),
      reducer_(reduced_.sharding->gradients()),
      shown_(options_.parameters.size()) {
  if (!options_.complete) return;
  reducer_.on_complete([this](std::size_t i) {
    const at::Tensor gradient = reducer_.gradient(i);
    if (gradient.defined() && gradient.numel() > 0) options_.complete(i, gradient);
  });
}

ReducedGradients::~ReducedGradients() {
  if (!options_.complete) return;
  reduced_.sharding->discard();
  reducer_.on_complete(nullptr);
}

void ReducedGradients::begin_backward(const std::string& step, bool last, bool local,
                                      const std::vector<std::size_t>& left_out) {
  reducer_.begin(step, last, local, left_out);
}

void ReducedGradients::set_present(const std::vector<std::uint8_t>& present) {
  present_ = present;
  reducer_.expect(present);
}

void ReducedGradients::set(std::size_t i, const at::Tensor& values) {
  const at::Tensor gradient = kept(i);
  if (!gradient.is_alias_of(values)) gradient.copy_(values.view(gradient.sizes()));
  reducer_.note_given(i);
}

bool ReducedGradients::prepare(std::size_t i) {
  if (!wanted(i) && !reduced_.every_slot) return false;
  shown_[i] = kept(i);
  return true;
}

void ReducedGradients::drop(bool applied) {
  StepGradients::drop(applied);
  for (at::Tensor& gradient : shown_) gradient.reset();
  present_.clear();
  reducer_.drop();
  // The rounding error of a number that is not finite is not finite, and would spoil the next gradients.
  if (!applied) reducer_.forget_errors();
}

void ReducedGradients::settle_store() {
  if (reduced_.store != nullptr) reduced_.store->settle();
}

}  // namespace capstan
