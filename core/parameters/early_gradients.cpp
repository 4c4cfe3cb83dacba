#include "core/parameters/early_gradients.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace capstan {
namespace {

/// The copies of a thread that stays on the default stream would wait for the rest of backward.
void take_own_stream(const Accelerator& accelerator) {
  accelerator.bind_thread();
  const c10::impl::VirtualGuardImpl guard(accelerator.device().type());
  guard.exchangeStream(guard.getStreamFromGlobalPool(accelerator.device()));
}

}  // namespace

EarlyGradients::EarlyGradients(const Accelerator& accelerator, std::size_t parameters)
    : copies_(parameters),
      pinned_(accelerator.device()),
      queue_(/*threaded=*/true, [&accelerator] { take_own_stream(accelerator); },
             [&accelerator] { return accelerator.after_this(); }) {}

void EarlyGradients::start(std::size_t i, const at::Tensor& gradient) {
  copies_[i].gradient = gradient.detach().view({-1});
  queue_.submit([this, i, from = copies_[i].gradient] {
    const at::NoGradGuard no_grad;
    copies_[i].here = pinned_.to_host({from}).front();
  });
}

void EarlyGradients::close() {
  for (Copy& copy : copies_) {
    if (copy.gradient.defined()) copy.version = copy.gradient._version();
  }
}

at::Tensor EarlyGradients::take(std::size_t i, const at::Tensor& gradient) {
  queue_.drain();
  const Copy& copy = copies_[i];
  const bool same = copy.gradient.defined() && copy.gradient.const_data_ptr() == gradient.const_data_ptr() &&
                    copy.gradient.numel() == gradient.numel() &&
                    copy.gradient.scalar_type() == gradient.scalar_type() && copy.gradient._version() == copy.version;
  return same ? copy.here : at::Tensor();
}

void EarlyGradients::drop() noexcept {
  queue_.discard();
  for (Copy& copy : copies_) copy = {};
}

}  // namespace capstan
