#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "boundaries.hpp"
#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/observer.hpp"
#include "chosen_layers.hpp"

namespace capstan::activation_checkpointing {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::uint32_t check_of(const std::string& name) { return name == "first" ? 0 : name == "always" ? 1 : 2; }

/// The sections activation_checkpointing and capstan.recompute: runs the layers that they choose as regions whose
/// activations the engine computes again.
class ActivationCheckpointing {
 public:
  ActivationCheckpointing(sdk::Host host, const sdk::Params& params)
      : host_(host),
        patterns_(params.texts("layers")),
        every_(params.integer("every")),
        keep_(params.texts("keep")),
        check_(check_of(params.text("check"))),
        on_host_(params.boolean("cpu_checkpointing")),
        slots_(params.boolean("contiguous_memory_optimization") && params.has("number_checkpoints")
                   ? params.integer("number_checkpoints")
                   : 0),
        synchronizes_(params.boolean("synchronize_checkpoint_boundary")),
        profiles_(params.boolean("profile")) {
    params.require(slots_ > 0 || !params.boolean("contiguous_memory_optimization"), "contiguous_memory_optimization",
                   "needs number_checkpoints.");
  }

  void event(const capstan_event& event) {
    if (event.kind == CAPSTAN_EVENT_INITIALIZED) choose_layers();
    if (event.kind == CAPSTAN_EVENT_STEP_END && !ran_) {
      throw sdk::Error("capstan.recompute.layers: none of the model's " + std::to_string(chosen_.count()) +
                       " layers ran through capstan::layer in the first step, so nothing is computed again. The "
                       "model's author has to call its layers through capstan::layer.");
    }
  }

  capstan_tensor layer(sdk::LayerRun& run) {
    const ChosenLayers::Place place = chosen_.place(run.index(), run.name());
    if (!place.chosen) return run.run(run.hidden());
    ran_ = true;
    device_ = sdk::borrow(run.hidden()).device();
    if (!place.joins) region_ = run.name();
    const Clock::time_point begin = boundary();
    std::vector<capstan_str> keep;
    for (const std::string& name : keep_) keep.push_back(sdk::to_str(name));
    const capstan_tensor out = run.recompute(run.hidden(), how(place, keep));
    if (profiles_) {
      boundary();
      Times& times = times_[region_];
      times.forward_ms = ms_since(begin) + (place.joins ? times.forward_ms : 0);
    }
    return out;
  }

 private:
  struct Times {
    double forward_ms = 0;
    Clock::time_point backward;
    bool in_backward = false;
  };

  void choose_layers() {
    const std::vector<std::string> names = host_.layer_names();
    if (names.empty()) {
      throw sdk::ConfigMistake(
          "capstan.recompute",
          "the model has no layers that could be computed again: it neither lists \"layer_names\" "
          "in "
          "its description nor numbers modules of one class from 0. Its author calls layers through capstan::layer, or "
          "parts of the model through capstan::checkpoint, which needs no configuration.");
    }
    chosen_ = ChosenLayers(names, patterns_, every_);
    const auto regions = static_cast<std::int64_t>(chosen_.regions());
    if (slots_ == 0 || slots_ >= regions) return;
    if (host_.rank() == 0) {
      host_.warning(
          "activation_checkpointing.contiguous_memory_optimization: is ignored, because number_checkpoints is " +
          std::to_string(slots_) + " and the inputs of " + std::to_string(regions) +
          " regions are kept. Set number_checkpoints to " + std::to_string(regions) + ", or remove both.");
    }
    slots_ = 0;
  }

  capstan_recompute how(const ChosenLayers::Place& place, const std::vector<capstan_str>& keep) {
    capstan_recompute how{};
    how.struct_size = sizeof how;
    how.joins = place.joins ? 1 : 0;
    how.stays_open = place.stays_open ? 1 : 0;
    how.check = check_;
    how.keep = keep.data();
    how.keep_count = keep.size();
    how.ctx = this;
    if (profiles_ || synchronizes_) how.backward = &ActivationCheckpointing::backward;
    if (!boundaries_ && slots_ > 0) boundaries_ = std::make_unique<SlotBoundaries>(slots_, on_host_);
    if (!boundaries_ && on_host_ && !device_.is_cpu()) boundaries_ = std::make_unique<HostBoundaries>();
    if (boundaries_) {
      how.pack = &ActivationCheckpointing::pack;
      how.unpack = &ActivationCheckpointing::unpack;
      how.drop = &ActivationCheckpointing::drop;
    }
    return how;
  }

  /// Now, and where the times of a device's work are asked for, after it has done what was queued.
  Clock::time_point boundary() const {
    if ((synchronizes_ || profiles_) && !device_.is_cpu()) {
      const c10::impl::VirtualGuardImpl device(device_.type());
      device.synchronizeStream(device.getStream(device_));
    }
    return Clock::now();
  }

  static capstan_status pack(void* self, capstan_tensor boundary, std::uint64_t* id, capstan_error* error) {
    auto& observer = *static_cast<ActivationCheckpointing*>(self);
    return sdk::guarded(observer.host_.raw(), error,
                        [&] { *id = observer.boundaries_->pack(sdk::borrow(boundary), observer.region_); });
  }
  static capstan_status unpack(void* self, std::uint64_t id, capstan_tensor* out, capstan_error* error) {
    auto& observer = *static_cast<ActivationCheckpointing*>(self);
    return sdk::guarded(observer.host_.raw(), error, [&] { *out = sdk::give(observer.boundaries_->unpack(id)); });
  }
  static void drop(void* self, std::uint64_t id) { static_cast<ActivationCheckpointing*>(self)->boundaries_->drop(id); }

  static void backward(void* self, capstan_str layer, int what) {
    auto& observer = *static_cast<ActivationCheckpointing*>(self);
    const Clock::time_point now = observer.boundary();
    if (!observer.profiles_) return;
    const auto found = observer.times_.find(std::string(sdk::to_view(layer)));
    if (found == observer.times_.end()) return;
    if (what == CAPSTAN_RECOMPUTE_BEGIN) {
      found->second.backward = now;
      found->second.in_backward = true;
    }
    if (what != CAPSTAN_RECOMPUTE_RELEASED || !found->second.in_backward) return;
    found->second.in_backward = false;
    char text[96];
    std::snprintf(text, sizeof text, "time (ms) | fwd: %.2f | backward: %.2f", found->second.forward_ms,
                  ms_since(found->second.backward));
    if (observer.host_.rank() == 0) observer.host_.info(found->first + ": " + text);
  }

  sdk::Host host_;
  std::vector<std::string> patterns_;
  std::int64_t every_;
  std::vector<std::string> keep_;
  std::uint32_t check_;
  bool on_host_;
  std::int64_t slots_;  // of contiguous_memory_optimization; 0: off
  bool synchronizes_, profiles_;

  ChosenLayers chosen_;
  std::unique_ptr<Boundaries> boundaries_;           // null: inputs stay where they are
  std::map<std::string, Times, std::less<>> times_;  // by regions
  std::string region_;                               // the first layer of the last one
  at::Device device_ = at::kCPU;                     // of the layers' inputs
  bool ran_ = false;
};

}  // namespace
}  // namespace capstan::activation_checkpointing

CAPSTAN_PLUGIN(
    &capstan::sdk::observer<capstan::activation_checkpointing::ActivationCheckpointing, "activation_checkpointing">)
