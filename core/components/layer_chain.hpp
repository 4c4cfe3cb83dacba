#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capstan/plugin.h"
#include "core/registry/registry.hpp"

namespace capstan {

/// Runs a model's capstan::layer calls through whatever wraps layers.
class LayerHost {
 public:
  virtual ~LayerHost() = default;
  /// `call` may lack its index and count, which the host knows.
  virtual void run(const capstan_layer_call& call, const capstan_inner& inner, capstan_tensor* out) = 0;
};

/// The observers that wrap layers, in the order of their manifests' `layer_order`: the first is outermost. [engine]
class LayerChain final : public LayerHost {
 public:
  /// `observer` must outlive the chain.
  void add(const Component& observer);
  bool empty() const { return wrappers_.empty(); }

  /// The model's list of layers, which gives the calls their places.
  void set_names(const std::vector<std::string>& names);

  void run(const capstan_layer_call& call, const capstan_inner& inner, capstan_tensor* out) override;

  /// The names of the model's layers that an observer has not run since the last call.
  std::set<std::string> take_left_out() { return std::exchange(left_out_, {}); }
  /// The model's layers that were called since forget_calls() and that no call has run.
  std::vector<std::string> never_ran() const;
  void forget_calls() { calls_.assign(calls_.size(), {}); }

 private:
  /// One call from the model, and the call in which the model runs its layer.
  struct Call {
    capstan_layer_call described;
    const capstan_inner* inner;
    PluginFunction model;
    std::string where;         // "layer 'blocks.3'"
    mutable bool ran = false;  // the model's layer did
  };
  struct Rest;
  capstan_tensor run_from(std::size_t position, const Call& call, capstan_tensor hidden,
                          const capstan_argument* const* arguments, std::size_t argument_count) const;

  struct Calls {
    bool ran = false, left_out = false;
  };
  std::vector<const Component*> wrappers_;
  std::vector<Calls> calls_;  // of the model's layers, by their places
  std::unordered_map<std::string, std::uint32_t> places_;
  std::set<std::string> left_out_;
};

}  // namespace capstan
