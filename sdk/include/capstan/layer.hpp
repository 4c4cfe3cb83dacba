#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include "capstan/plugin.h"
#include "capstan/sdk/arguments.hpp"
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

  static capstan_status run(void* ctx, capstan_tensor hidden, const capstan_argument* const* arguments,
                            std::size_t argument_count, capstan_tensor* out, capstan_error* error) {
    auto& call = *static_cast<LayerCall*>(ctx);
    return guarded(call.host, error, [&] {
      if (call.ran) throw Error("layer '" + std::string(call.name) + "' was run twice. Run inner at most once.");
      call.ran = true;
      Arguments given;
      for (std::size_t i = 0; i < argument_count; ++i) {
        given.set(to_view(arguments[i]->name), borrow(arguments[i]->tensor));
      }
      try {
        *out = give(call.f(borrow(hidden), given));
      } catch (...) {
        call.thrown = std::current_exception();
        throw;
      }
    });
  }
};

/// Runs `f` as a layer inside the host: host_call(described, inner, &out) leads to the host's function for it.
template <class F, class HostCall>
at::Tensor call_in_host(const ForwardScope& scope, std::string_view name, const at::Tensor& hidden,
                        const Arguments& arguments, F& f, const HostCall& host_call) {
  using Call = LayerCall<F>;
  Call call{scope.host, name, f};
  const capstan_inner inner{sizeof inner, &call, &Call::run};
  const LentArguments lent(arguments);
  capstan_layer_call described{};
  described.struct_size = sizeof described;
  described.name = to_str(name);
  described.batch = scope.batch;
  described.hidden = lend(hidden);
  described.arguments = lent.data();
  described.argument_count = lent.size();
  capstan_tensor handle = nullptr;
  const capstan_status status = host_call(described, inner, &handle);
  at::Tensor out = take(handle);
  if (call.thrown) std::rethrow_exception(call.thrown);
  check(status);
  if (!out.defined()) throw Error("layer '" + std::string(name) + "' came back without a tensor");
  return out;
}

}  // namespace sdk

/// Runs one layer of a model that takes more than its hidden states: f(hidden, arguments), an at::Tensor of both.
/// Inside an engine's forward the observers that are attached to layers may change what goes in and comes out, give the
/// layer fewer tokens with arguments that fit, or leave it out; anywhere else (and in threads that the model starts) it
/// just calls `f`. `f` is called within this call and at most once, so that it may capture by reference. What it throws
/// arrives here unchanged.
///
/// `name` should be the path of the module that computes the layer: "blocks.3". Observers know arguments by name:
/// "attention_mask" is [batch or 1, heads or 1, tokens, tokens], "position_ids" is [batch or 1, tokens].
template <class F>
at::Tensor layer(std::string_view name, const at::Tensor& hidden, const Arguments& arguments, F&& f) {
  const sdk::ForwardScope* scope = sdk::ForwardScope::current;
  if (scope == nullptr) return f(hidden, arguments);

  return sdk::call_in_host(*scope, name, hidden, arguments, f,
                           [scope](const capstan_layer_call& call, const auto& inner, capstan_tensor* out) {
                             return scope->host->layer(scope->batch, &call, &inner, out, scope->error);
                           });
}

/// The same for a layer that takes its hidden states alone: f(hidden).
template <class F>
at::Tensor layer(std::string_view name, const at::Tensor& hidden, F&& f) {
  return layer(name, hidden, Arguments(), [&f](const at::Tensor& input, const Arguments&) { return f(input); });
}

/// Runs f(x), an at::Tensor, and forgets its activations until backward, which computes them again (activation
/// checkpointing; Chen et al. 2016, arXiv 1604.06174, with operators that are recorded and replayed in the place of `f`
/// run twice). Gradients, running statistics and random numbers are, bit for bit, those of f(x). `f` is called within
/// this call, once, so that it may capture by reference. It needs no configuration; outside of an engine's training it
/// just calls `f`, and so it does inside of a layer that is recomputed as a whole. `name` is for messages.
///
/// What `f` computes must come of LibTorch's operators: elements that it writes through data_ptr() into what an
/// operator has computed would be lost, which the first micro-batch's check finds and says.
template <class F>
at::Tensor checkpoint(std::string_view name, const at::Tensor& x, F&& f) {
  const sdk::ForwardScope* scope = sdk::ForwardScope::current;
  if (scope == nullptr) return f(x);
  auto layer = [&f](const at::Tensor& input, const Arguments&) { return f(input); };
  const auto in_host = [scope](const capstan_layer_call& call, const auto& inner, capstan_tensor* out) {
    capstan_recompute how{};
    how.struct_size = sizeof how;
    return scope->host->recompute(scope->batch, &call, &inner, &how, out, scope->error);
  };
  return sdk::call_in_host(*scope, name, x, Arguments(), layer, in_host);
}

/// The same without a name.
template <class F>
at::Tensor checkpoint(F&& f, const at::Tensor& x) {
  return checkpoint("checkpoint", x, f);
}

}  // namespace capstan
