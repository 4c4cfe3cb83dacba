// An observer at all five places, and every way to get it wrong. Pinned: it uses ATen.
#include "capstan/sdk/observer.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "bad.hpp"
#include "capstan/sdk/aten.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }

  void event(const capstan_event& event) {
    if (breaks("events") && event.kind > CAPSTAN_EVENT_CLOSING) std::abort();
    ++events_;
    leak_in_call();
  }
  bool selects_weight(std::string_view, std::span<const std::int64_t> shape) { return shape.size() >= 2; }
  void transform_weight(std::string_view, capstan_tensor master, capstan_tensor compute, std::int64_t) {
    at::Tensor out = sdk::borrow(compute), in = sdk::borrow(master);
    out.copy_(in);
    leak_in_call("transform_leak");
    if (breaks("weights")) in.mul_(2);
  }
  capstan_tensor rewrite_operand(std::string_view, std::string_view, capstan_tensor operand) {
    const at::Tensor& tensor = sdk::borrow(operand);
    leak_in_call("rewrite_leak");
    return sdk::give(breaks("operands") ? tensor.flatten() : tensor.mul(1));
  }
  capstan_tensor layer(std::string_view, capstan_tensor hidden, const sdk::InnerLayer& inner) {
    at::Tensor out = sdk::take(inner.run(hidden));
    leak_in_call("layer_leak");
    if (breaks("layers")) out = sdk::take(inner.run(hidden));
    return sdk::give(std::move(out));
  }
  void batch(sdk::Batch& batch) {
    leak_in_call("batch_leak");
    if (breaks("batch") && !batch.number("absent")) std::abort();
    batch.set_number("seen", 1);
  }
  void save(const sdk::Sink& sink) { sink.write("{\"events\": " + std::to_string(events_) + "}"); }
  void load(const sdk::Document& saved) {
    if (!breaks("state_round_trip")) events_ = saved.integer("events");
  }

 private:
  std::int64_t events_ = 0;
};

/// Transforms the weights that its parameter names, the master with them.
class BadNamed {
 public:
  BadNamed(const sdk::Host&, const sdk::Params& params) : part_(params.text("part")) {}
  bool selects_weight(std::string_view name, std::span<const std::int64_t>) {
    return name.find(part_) != name.npos && name.ends_with(".weight");
  }
  void transform_weight(std::string_view, capstan_tensor master, capstan_tensor compute, std::int64_t) {
    sdk::borrow(compute).copy_(sdk::borrow(master).mul_(2));
  }

 private:
  std::string part_;
};

class BadAttach {
 public:
  BadAttach(const sdk::Host&, const sdk::Params&) {}
  void event(const capstan_event&) {}
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::observer<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad, &sdk::observer<BadAttach, "BadAttach">, &sdk::observer<BadNamed, "BadNamed">)
