// An observer at all three places, and every way to get it wrong. Pinned: it uses ATen.
#include "capstan/sdk/observer.hpp"

#include <ATen/core/Tensor.h>

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
  capstan_tensor layer(sdk::LayerRun& run) {
    at::Tensor out = sdk::take(run.run(run.hidden()));
    leak_in_call("layer_leak");
    if (breaks("layers")) out = sdk::take(run.run(run.hidden()));
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

class BadAttach {
 public:
  BadAttach(const sdk::Host&, const sdk::Params&) {}
  void event(const capstan_event&) {}
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::observer<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad, &sdk::observer<BadAttach, "BadAttach">)
