#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <string_view>

#include "capstan/plugin.h"
#include "capstan/sdk/aten.hpp"

namespace capstan {

namespace sdk {

/// Marks this thread as being inside a model's forward on behalf of an engine. Set by the SDK around every forward.
class ForwardScope {
 public:
  ForwardScope(const capstan_host* host, capstan_batch* batch, capstan_error* error)
      : host(host), batch(batch), error(error), outer_(current) {
    current = this;
  }
  ~ForwardScope() { current = outer_; }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  const capstan_host* const host;
  capstan_batch* const batch;
  capstan_error* const error;

  static inline thread_local ForwardScope* current = nullptr;

 private:
  ForwardScope* outer_;
};

/// One capstan::layer call while it is inside the host. What `f` throws waits in `thrown` until the C frames are left.
template <class F>
struct LayerCall {
  const capstan_host* host;
  std::string_view name;
  F& f;
  bool ran = false;
  std::exception_ptr thrown = nullptr;

  static capstan_status run(void* ctx, capstan_tensor hidden, capstan_tensor* out, capstan_error* error) {
    auto& call = *static_cast<LayerCall*>(ctx);
    return guarded(call.host, error, [&] {
      if (call.ran) throw Error("layer '" + std::string(call.name) + "' was run twice. Run inner at most once.");
      call.ran = true;
      try {
        *out = give(call.f(borrow(hidden)));
      } catch (...) {
        call.thrown = std::current_exception();
        throw;
      }
    });
  }
};

}  // namespace sdk

/// Runs one layer of a model: f(hidden), an at::Tensor to at::Tensor. Inside an engine's forward the observers that are
/// attached to layers may change what goes in and comes out, or leave the layer out; anywhere else (and in threads that
/// the model starts) it just calls `f`. What `f` throws arrives here unchanged.
///
/// `name` should be the path of the module that computes the layer: "blocks.3".
template <class F>
at::Tensor layer(std::string_view name, const at::Tensor& hidden, F&& f) {
  const sdk::ForwardScope* scope = sdk::ForwardScope::current;
  if (scope == nullptr) return f(hidden);

  using Call = sdk::LayerCall<std::remove_reference_t<F>>;
  Call call{scope->host, name, f};
  const capstan_inner inner{sizeof inner, &call, &Call::run};
  capstan_tensor handle = nullptr;
  const capstan_status status =
      scope->host->layer(scope->batch, sdk::to_str(name), sdk::lend(hidden), &inner, &handle, scope->error);
  at::Tensor out = sdk::take(handle);
  if (call.thrown) std::rethrow_exception(call.thrown);
  sdk::check(status);
  if (!out.defined()) throw sdk::Error("layer '" + std::string(name) + "' came back without a tensor");
  return out;
}

}  // namespace capstan
