#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "timeline.hpp"

namespace capstan::profiler {

/// One outermost operator of forward, or one node of backward with all that it runs.
struct OpRecord {
  std::string name;  // "aten::linear", "AddmmBackward0"
  bool backward = false;
  Timeline::Moment begin = 0, end = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // those moments, once the recorder has stopped
  double flops = 0, macs = 0;
  std::string parameter;       // the first parameter among its tensors; empty: none
  std::string scope;           // the layer that it ran in; empty: none
  std::int64_t scope_id = 0;   // tells two runs of one layer apart
  std::int64_t sequence = -1;  // forward: autograd's number before it; backward: that of the forward operator
  double latency_ms() const { return static_cast<double>(end_ns - begin_ns) * 1e-6; }
};

/// Notes every operator that the engine's thread runs while it is on, through LibTorch's RecordFunction. One at a time
/// in a process.
class Recorder {
 public:
  Recorder() = default;
  ~Recorder() { let_go(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// `parameters`: storage -> name, tensors of `device`. False when another recorder of this process is on.
  bool start(std::unordered_map<const void*, std::string> parameters, c10::Device device);
  /// Waits for the device.
  void stop();
  /// The step's clock; its moments have times once the recorder has stopped.
  Timeline& timeline() { return timeline_; }
  bool on() const { return handle_ != 0; }

  /// What runs outside of both is the engine's own and is not noted, nor what it runs beside the nodes of backward.
  enum class Phase { kNone, kForward, kBackward };
  void set_phase(Phase phase) { phase_ = phase; }

  void enter_layer(const std::string& name);
  void leave_layer();

  const std::vector<OpRecord>& records() const { return records_; }
  /// What the engine ran again in backward (activation checkpointing), which is in no record's numbers but the latency
  /// of the node that asked for it.
  struct Recomputed {
    double flops = 0, macs = 0, latency_ms = 0;
  };
  const Recomputed& recomputed() const { return recomputed_; }
  void clear() {
    records_.clear();
    recomputed_ = {};
    again_.clear();
  }

 private:
  struct Call;
  bool let_go();  // false: it was off
  static std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& call);
  static void end_call(const at::RecordFunction& call, at::ObserverContext* context);

  std::unique_ptr<Call> begin(const at::RecordFunction& call);
  void end(const at::RecordFunction& call, Call& context);
  std::string parameter_of(const c10::IValue& input) const;
  std::string parameter_among(const at::RecordFunction& call) const;
  bool adds_bias_of_product(const OpRecord& record) const;

  at::CallbackHandle handle_ = 0;
  Phase phase_ = Phase::kNone;
  std::unordered_map<const void*, std::string> parameters_;
  std::vector<OpRecord> records_;
  std::vector<std::pair<std::string, std::int64_t>> scopes_;
  std::int64_t next_scope_ = 0;
  int depth_ = 0;            // calls that are open
  int counted_at_ = 0;       // the depth of the call that is counted as a whole; 0: none
  Call* counted_ = nullptr;  // that call
  int again_at_ = 0;         // the depth of the engine's call around what it runs again; 0: none
  Timeline::Moment again_begin_ = 0;
  std::vector<std::pair<Timeline::Moment, Timeline::Moment>> again_;  // what the engine ran again
  Recomputed recomputed_;
  Timeline timeline_;
  std::size_t current_ = 0;
};

}  // namespace capstan::profiler
