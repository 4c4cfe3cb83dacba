#include "core/engine/tuning_trial.hpp"

#include <algorithm>
#include <numeric>

#include "core/engine/progress_report.hpp"
#include "core/output_path.hpp"
#include "core/text/json.hpp"

namespace capstan {
namespace {

constexpr double kMicro = 1e6, kMicroOfMilli = 1e3;

/// Bytes where the model is.
std::uint64_t used_bytes(const Accelerator& accelerator) {
  const DeviceMemory device = accelerator.memory();
  return device.total > 0 ? device.in_use : host_memory().resident;
}

std::uint64_t peak_bytes(const Accelerator& accelerator) {
  const DeviceMemory device = accelerator.memory();
  return device.total > 0 ? device.peak : host_memory().peak;
}

bool profiles(const Config& config) {
  return config.autotuning.model_info && config.autotuning.model_info->profile && config.autotuning.model_info_path;
}

}  // namespace

std::unique_ptr<TuningTrial> TuningTrial::of(const Config& config, int rank) {
  const bool wanted = config.autotuning.enabled && (config.autotuning.metric_path || profiles(config));
  return wanted ? std::make_unique<TuningTrial>(config, rank) : nullptr;
}

void TuningTrial::step_begins(const Accelerator& accelerator) {
  if (begun_) return;
  begun_ = true;
  memory_before_ = profiles(config_) ? used_bytes(accelerator) : 0;
  last_ = std::chrono::steady_clock::now();
}

void TuningTrial::forward_ends(const Model& model, const Accelerator& accelerator) {
  if (!profiles(config_) || ended_) return;
  ended_ = true;
  if (rank_ > 0) return;
  std::int64_t all = 0, trainable = 0;
  for (const NamedTensor& parameter : model.parameters()) {
    all += parameter.tensor.numel();
    trainable += parameter.trained() ? parameter.tensor.numel() : 0;
  }
  const std::uint64_t after = used_bytes(accelerator);
  Json info = Json::object();
  info["num_params"] = all * config_.autotuning.mp_size;
  info["trainable_num_params"] = trainable * config_.autotuning.mp_size;
  info["activation_mem_per_gpu"] = static_cast<std::int64_t>(std::max(after, memory_before_) - memory_before_);
  info["rank"] = rank_;
  replace_file(*config_.autotuning.model_info_path, info.dump(2) + "\n");
}

void TuningTrial::step_ends(std::int64_t step, const Spans& spans, const Accelerator& accelerator) {
  if (ended_ || !config_.autotuning.metric_path) return;
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  if (step < config_.autotuning.start_profile_step) return;
  seconds_.push_back(seconds);
  for (const auto& [name, milliseconds] : spans) {
    if (name == "fwd") forward_ += milliseconds;
    if (name == "bwd") backward_ += milliseconds;
    if (name == "step") update_ += milliseconds;
  }
  if (step < config_.autotuning.end_profile_step) return;
  ended_ = true;
  if (rank_ == 0) write_metrics(accelerator);
}

void TuningTrial::write_metrics(const Accelerator& accelerator) {
  const auto steps = static_cast<double>(seconds_.size());
  const double latency = std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / steps;
  const auto accumulation = static_cast<double>(config_.batch.gradient_accumulation_steps);
  Json metrics = Json::object();
  metrics["fwd"] = forward_ / steps / accumulation * kMicroOfMilli;
  metrics["bwd"] = backward_ / steps / accumulation * kMicroOfMilli;
  metrics["step"] = update_ / steps * kMicroOfMilli;
  metrics["latency"] = latency * kMicro;
  metrics["throughput"] = static_cast<double>(config_.batch.train_batch_size) / latency;
  metrics["rank"] = rank_;
  Json& list = metrics["step_seconds"] = Json::array();
  for (const double seconds : seconds_) list.push_back(seconds);
  metrics["train_batch_size"] = config_.batch.train_batch_size;
  metrics["peak_memory"] = static_cast<std::int64_t>(peak_bytes(accelerator));
  replace_file(*config_.autotuning.metric_path, metrics.dump(2) + "\n");
}

}  // namespace capstan
