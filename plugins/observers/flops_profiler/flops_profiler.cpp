#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/observer.hpp"
#include "capstan/sdk/output_folder.hpp"
#include "exports.hpp"
#include "module_tree.hpp"
#include "peak.hpp"
#include "recorder.hpp"
#include "report.hpp"

namespace capstan::profiler {
namespace {

std::string text_or_empty(const sdk::Params& params, const char* name) {
  return params.has(name) ? params.text(name) : std::string();
}

void write_file(const sdk::Host& host, const std::string& file, const std::string& text) {
  const std::filesystem::path path(file);
  if (path.has_parent_path()) {
    if (const std::string made = sdk::make_folder(path.parent_path()); !made.empty()) host.info(made);
  }
  std::ofstream out(path, std::ios::trunc | std::ios::binary);
  out << text;
  out.close();
  if (!out) throw sdk::Error(file + ": " + std::strerror(errno) + ".");
}

/// Turns itself on for one step of rank 0, and reports at its end.
class FlopsProfiler {
 public:
  FlopsProfiler(sdk::Host host, const sdk::Params& params)
      : host_(host),
        profile_step_(params.integer("profile_step")),
        output_file_(text_or_empty(params, "output_file")),
        json_file_(text_or_empty(params, "json_file")),
        trace_file_(text_or_empty(params, "trace_file")) {
    options_.module_depth = static_cast<int>(params.integer("module_depth"));
    options_.top_modules = static_cast<int>(params.integer("top_modules"));
    options_.detailed = params.boolean("detailed");
    facts_.recompute_factor = params.number("recompute_fwd_factor");
    if (params.has("peak_tflops")) {
      facts_.peak_flops = params.number("peak_tflops") * 1e12;
      facts_.peak_source = "given";
    }
  }

  void event(const capstan_event& event, const sdk::Parameters& parameters) {
    if (event.kind == CAPSTAN_EVENT_STEP_BEGIN && event.global_step == profile_step_ && host_.rank() == 0) {
      begin(event, parameters);
    } else if (profiling_) {
      follow(event);
    }
  }

  capstan_tensor layer(sdk::LayerRun& run) {
    if (!recorder_.on()) return run.run(run.hidden());
    struct Scope {
      Recorder& recorder;
      Scope(Recorder& r, std::string_view layer) : recorder(r) { recorder.enter_layer(std::string(layer)); }
      ~Scope() { recorder.leave_layer(); }
    } scope(recorder_, run.name());
    return run.run(run.hidden());
  }

 private:
  struct Span {
    double* total;  // in facts_
    Timeline::Moment begin, end;
  };
  Timeline::Moment mark() { return recorder_.timeline().mark(); }

  void begin(const capstan_event& event, const sdk::Parameters& parameters) {
    std::unordered_map<const void*, std::string> storages;
    c10::Device device = c10::kCPU;
    parameters.modules(
        [&](std::string_view path, std::string_view class_name) { shape_.modules.emplace_back(path, class_name); });
    parameters.visit([&](std::string_view name, capstan_tensor handle, capstan_role role) {
      if (role != CAPSTAN_ROLE_PARAMETER) return;
      const at::Tensor& tensor = sdk::borrow(handle);
      device = tensor.device();
      shape_.parameters.emplace_back(name, tensor.numel());
      if (tensor.has_storage()) storages.emplace(tensor.storage().unsafeGetStorageImpl(), name);
    });
    // Before the step, so that it does not count.
    if (facts_.peak_flops == 0) {
      facts_.peak_flops = measured_peak_flops(device);
      facts_.peak_source = "measured: a matrix product in float32";
    }
    facts_.step = event.global_step;
    facts_.world_size = host_.world_size();
    samples_before_ = event.global_samples;
    profiling_ = recorder_.start(std::move(storages), device);
    if (!profiling_) {
      host_.warning("flops_profiler: another engine of this process is being profiled; step " +
                    std::to_string(event.global_step) + " is not.");
    }
  }

  void follow(const capstan_event& event) {
    switch (event.kind) {
      case CAPSTAN_EVENT_FORWARD_BEGIN:
        ++micro_steps_;
        recorder_.set_phase(Recorder::Phase::kForward);
        since_ = mark();
        break;
      case CAPSTAN_EVENT_FORWARD_END:
        spans_.push_back({&facts_.forward_ms, since_, mark()});
        recorder_.set_phase(Recorder::Phase::kNone);
        break;
      case CAPSTAN_EVENT_BACKWARD_BEGIN:
        recorder_.set_phase(Recorder::Phase::kBackward);
        since_ = mark();
        break;
      case CAPSTAN_EVENT_BACKWARD_END:
        spans_.push_back({&facts_.backward_ms, since_, mark()});
        recorder_.set_phase(Recorder::Phase::kNone);
        since_ = mark();
        break;
      case CAPSTAN_EVENT_UPDATE_END:
        spans_.push_back({&facts_.update_ms, since_, mark()});
        break;
      case CAPSTAN_EVENT_STEP_END:
        recorder_.stop();
        for (const Span& span : spans_) *span.total += recorder_.timeline().ms(span.begin, span.end);
        spans_.clear();
        profiling_ = false;
        facts_.samples = static_cast<double>(event.global_samples - samples_before_);
        facts_.micro_batch = facts_.samples / (facts_.world_size * std::max(1.0, micro_steps_));
        report();
        break;
      default:
        break;
    }
  }

  void report() {
    facts_.recomputed = recorder_.recomputed();
    const Module model = module_tree(shape_, recorder_.records());
    const std::string text = report_text(model, facts_, options_);
    if (output_file_.empty()) {
      if (::isatty(STDOUT_FILENO)) std::fputs("\r\x1b[K", stdout);  // over a progress bar
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    } else {
      write_file(host_, output_file_, text);
    }
    if (!json_file_.empty()) write_file(host_, json_file_, profile_json(model, recorder_.records(), facts_));
    if (!trace_file_.empty()) write_file(host_, trace_file_, chrome_trace(recorder_.records()));
    recorder_.clear();
  }

  sdk::Host host_;
  std::int64_t profile_step_;
  std::string output_file_, json_file_, trace_file_;
  ReportOptions options_;
  StepFacts facts_;
  ModelShape shape_;
  Recorder recorder_;
  Timeline::Moment since_ = 0;
  std::vector<Span> spans_;
  std::int64_t samples_before_ = 0;
  double micro_steps_ = 0;
  bool profiling_ = false;
};

}  // namespace
}  // namespace capstan::profiler

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::profiler::FlopsProfiler, "flops_profiler">)
