#include "core/memory/recompute/recomputation.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "core/memory/recompute/activation_memory.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

/// Whom a region was run for: an observer, or a model by capstan::checkpoint; and where the boundary waits.
class CallersKeeper final : public RegionKeeper {
 public:
  CallersKeeper(const capstan_recompute& how, std::string layer, BoundaryStore* store)
      : caller_(CallInProgress::current()), layer_(std::move(layer)), store_(store) {
    std::memcpy(&how_, &how, std::min<std::size_t>(how.struct_size, sizeof how_));
    how_.struct_size = sizeof how_;
    how_.keep = nullptr;
    how_.keep_count = 0;
  }

  void moment(Moment moment) override {
    if (how_.backward != nullptr) how_.backward(how_.ctx, as_str(layer_), static_cast<int>(moment));
  }
  bool packs() const override { return how_.pack != nullptr || store_ != nullptr; }
  std::uint64_t pack(const at::Tensor& boundary) override {
    if (how_.pack == nullptr) return store_->pack(boundary, layer_);
    std::uint64_t id = 0;
    call_plugin(caller_, where("pack"),
                [&](capstan_error* error) { return how_.pack(how_.ctx, handle_of(boundary), &id, error); });
    return id;
  }
  at::Tensor unpack(std::uint64_t id) override {
    if (how_.pack == nullptr) return store_->unpack(id);
    capstan_tensor out = nullptr;
    call_plugin(caller_, where("unpack"), [&](capstan_error* error) { return how_.unpack(how_.ctx, id, &out, error); });
    if (out == nullptr) throw PluginError(where("unpack") + " gave no tensor.");
    return take_tensor(out);
  }
  void drop(std::uint64_t id) noexcept override {
    if (how_.pack == nullptr) return store_->drop(id);
    how_.drop(how_.ctx, id);
  }

 private:
  std::string where(const char* function) const { return "recomputation of '" + layer_ + "', " + function; }

  PluginFunction caller_;
  std::string layer_;
  BoundaryStore* store_;
  capstan_recompute how_{};
};

}  // namespace

void Recomputation::begin_forward(Policies policies, bool first) {
  recorder_.reset();
  policies_ = policies;
  first_ = first;
  std::erase_if(tapes_, [](const std::weak_ptr<Tape>& tape) { return tape.expired(); });
}

void Recomputation::end_forward() { close(); }

bool Recomputation::waits() const {
  return std::any_of(tapes_.begin(), tapes_.end(), [](const std::weak_ptr<Tape>& tape) { return !tape.expired(); });
}

std::set<std::string> Recomputation::names_of(const capstan_recompute& how, const std::string& layer) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < how.keep_count; ++i) {
    std::string name(as_view(how.keep[i]));
    if (!known_names_.contains(name)) {
      require_operator(name, "layer '" + layer + "': keep");
      known_names_.insert(name);
    }
    names.insert(name.find("::") == std::string::npos ? "aten::" + name : name);
  }
  return names;
}

void Recomputation::open(const capstan_layer_call& call, const capstan_recompute& how) {
  const std::string layer(as_view(call.name));
  const at::Tensor& hidden = tensor_of(call.hidden);
  BoundaryStore* store = at::isFloatingType(hidden.scalar_type()) ? store_ : nullptr;
  Recorder::Region region;
  region.keep = names_of(how, layer);
  region.looks_inside = !policies_.whole;
  region.digests = how.check == 1 || (how.check == 0 && first_);
  region.tape = std::make_shared<Tape>(layer, policies_.inside, std::make_unique<CallersKeeper>(how, layer, store));
  tapes_.push_back(region.tape);
  recorder_.emplace(std::move(region), tapes_, book_);
  recorder_->begin(hidden);
}

void Recomputation::close() {
  if (!recorder_) return;
  Tape& tape = recorder_->tape();
  try {
    tape.close();
  } catch (...) {
    recorder_.reset();
    throw;
  }
  recorder_.reset();
}

void Recomputation::run(const capstan_layer_call& call, const capstan_inner& inner, const capstan_recompute& how,
                        capstan_tensor* out) {
  const auto run_inner = [&] {
    capstan_error error;
    if (inner.run(inner.ctx, call.hidden, call.arguments, call.argument_count, out, &error) == CAPSTAN_OK) return;
    throw RuntimeFault(error.text);
  };
  if (Recorder::here() != nullptr || !at::GradMode::is_enabled() || c10::InferenceMode::is_enabled()) {
    return run_inner();
  }
  if (!how.joins) close();
  if (!recorder_) open(call, how);
  try {
    OperatorPolicies policies;
    if (policies_.outside != nullptr) policies.add(*policies_.outside);
    policies.add(*recorder_);
    if (policies_.inside != nullptr) policies.add(*policies_.inside);
    const InterceptorScope scope(policies);
    const SavedTensorScope saved(&*recorder_);
    const ActivationMemoryScope memory;
    const Recorder::Here here(&*recorder_);
    run_inner();
  } catch (...) {
    recorder_.reset();
    throw;
  }
  if (how.stays_open) return;
  try {
    close();
  } catch (...) {
    take_tensor(std::exchange(*out, nullptr));  // nobody gets what the layer has computed
    throw;
  }
}

void Recomputation::end() noexcept {
  recorder_.reset();
  for (const std::weak_ptr<Tape>& weak : tapes_) {
    if (const auto tape = weak.lock()) tape->end();
  }
  tapes_.clear();
}

}  // namespace capstan
