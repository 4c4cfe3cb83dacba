// What an engine tells its monitors, and the people who ask for its state.

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/engine/offload_metrics.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/monitor/run_info.hpp"
#include "core/text/utf8.hpp"

namespace capstan {
namespace {

std::string precision_name(const PrecisionConfig& precision) {
  std::string name = precision.compute == Precision::kBf16   ? "bf16"
                     : precision.compute == Precision::kFp16 ? "fp16"
                                                             : "fp32";
  if (precision.low_precision_masters) {
    name += " (master weights too" + std::string(precision.low_precision_states ? ", and moments" : "") +
            (precision.stochastic_rounding ? ", rounded at random)" : ")");
  } else if (precision.compute != Precision::kFp32 && precision.fp32_masters) {
    name += " (fp32 master weights)";
  }
  if (!precision.autocast_dtype.empty()) name += ", autocast to " + precision.autocast_dtype;
  return name;
}

/// "  name .... value", dotted to width 29 as DeepSpeed prints it.
std::string dotted(const std::string& name, const std::string& value, const std::string& origin) {
  constexpr std::size_t kWidth = 29;
  std::string line = "  " + name + " ";
  line += std::string(name.size() < kWidth ? kWidth - name.size() : 1, '.') + " " + value;
  return origin.empty() ? line + "\n" : line + "  (" + origin + ")\n";
}

}  // namespace

void Engine::State::renew_monitors() {
  monitors.reset();
  monitor_components.clear();
  for (const ComponentChoice& choice : config.monitors) {
    try {
      monitor_components.push_back(create(choice));
    } catch (const PluginError& error) {
      if (config.run.on_monitor_failure == "stop") {
        throw PluginError(std::string(error.what()) +
                          " To train without it, set capstan.run.on_monitor_failure to \"continue\".");
      }
      log::warning(std::string(error.what()) + " Training goes on without it.");
    }
  }
}

MonitorHost& Engine::State::open_monitors() {
  if (!monitors) {
    // Opened at the first metric: by then a resumed run knows where it goes on.
    RunFacts facts;
    facts.run = keep.run_id();
    facts.resumed_at = keep.resumed_at();
    facts.model = model.description();
    for (const NamedTensor& parameter : model.parameters()) facts.parameters += parameter.tensor.numel();
    facts.device = accelerator->device().str();
    monitors = std::make_unique<MonitorHost>(std::move(monitor_components), run_info(config, facts));
  }
  return *monitors;
}

void Engine::State::write_step_metrics(const Spans& spans) {
  if (config.monitors.empty()) return;
  const std::int64_t x = progress.global_samples;
  std::vector<Metric> metrics = {{"Train/Samples/train_loss", mean_loss, x}};
  if (optimizer) metrics.push_back({"Train/Samples/lr", groups[0].find("lr")->front(), x});
  if (config.precision.scales_loss) metrics.push_back({"Train/Samples/loss_scale", scaler.scale(), x});
  if (!std::isnan(last_step.grad_norm)) metrics.push_back({"Train/Samples/grad_norm", last_step.grad_norm, x});
  double step_ms = 0;
  for (const auto& [name, milliseconds] : spans) {
    if (name == "fwd" || name == "bwd" || name == "step") step_ms += milliseconds;
    std::string span = name == "fwd" ? "forward" : name;
    if (span.starts_with("bwd")) span.replace(0, 3, "backward");
    metrics.push_back({"Train/Samples/elapsed_time_ms_" + span, milliseconds, x});
  }
  if (step_ms > 0) {
    const double samples = static_cast<double>(config.batch.train_batch_size);
    metrics.push_back({"Train/Samples/samples_per_second", samples / step_ms * 1e3, x});
    metrics.push_back({"Train/Samples/memory_mb", static_cast<double>(host_memory().resident) / (1 << 20), x});
  }
  if (config.comms_logger.enabled && communicator->size() > 1) {
    const CommsLog::Traffic now = communicator->log().total();
    const auto bytes = static_cast<double>(now.bytes - traffic_before.bytes);
    metrics.push_back({"Train/Samples/comms_ms", now.milliseconds - traffic_before.milliseconds, x});
    metrics.push_back({"Train/Samples/comms_mb_sent", bytes / (1 << 20), x});
  }
  for (const auto& [tag, value] : recorded) metrics.push_back({tag, value, x});
  add_offload_metrics(metrics, offload_before, offload_traffic(), x);
  open_monitors().write(std::move(metrics));
}

void Engine::write_metric(const std::string& tag, double value) {
  if (state_->config.monitors.empty()) return;
  state_->open_monitors().write(std::vector<Metric>{{tag, value, state_->progress.global_samples}});
}

void Engine::write_text(const std::string& tag, const std::string& prompt, const std::string& text) {
  if (state_->config.monitors.empty()) return;
  const Progress& progress = state_->progress;
  state_->open_monitors().write_texts(
      {{as_utf8(tag), as_utf8(prompt), as_utf8(text), progress.global_steps, progress.global_samples}});
}

void Engine::flush_monitors() {
  if (state_->monitors) state_->monitors->flush();
}

std::string Engine::state_dump() const {
  const State& state = *state_;
  const Config& config = state.config;
  std::int64_t elements = 0;
  for (const NamedTensor& parameter : state.model.parameters()) elements += parameter.tensor.numel();
  std::vector<std::pair<std::string, std::string>> rows = {
      {"device", state.accelerator->device().str()},
      {"global_samples", std::to_string(state.progress.global_samples)},
      {"global_steps", std::to_string(state.progress.global_steps)},
      {"skipped_steps", std::to_string(state.progress.skipped_steps)},
      {"world_size", std::to_string(config.batch.world_size)},
      {"train_batch_size", std::to_string(config.batch.train_batch_size)},
      {"train_micro_batch_size_per_gpu", std::to_string(config.batch.micro_batch_size)},
      {"gradient_accumulation_steps", std::to_string(config.batch.gradient_accumulation_steps)},
      {"gradient_clipping", Json(config.gradient_clipping).dump()},
      {"precision", precision_name(config.precision)},
      {"zero_stage", std::to_string(config.zero.stage)},
      {"model", state.model.description()},
      {"model_parameters", std::to_string(elements)},
      {"optimizer", config.optimizer ? config.optimizer->type + " " + config.optimizer->params.dump() : "none"},
      {"scheduler", config.scheduler ? config.scheduler->type + " " + config.scheduler->params.dump() : "none"},
      {"parameter_groups", std::to_string(state.groups.size())},
      {"sub_groups", std::to_string(state.store.sub_groups().size())},
  };
  std::sort(rows.begin(), rows.end());
  std::string text = "Engine:\n";
  for (const auto& [name, value] : rows) {
    const auto origin = config.origins.find(name);
    text += dotted(name, value, origin == config.origins.end() ? "" : origin->second);
  }
  return text;
}

}  // namespace capstan
