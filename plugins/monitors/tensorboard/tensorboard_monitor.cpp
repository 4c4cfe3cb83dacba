#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "../common/run_folder.hpp"
#include "capstan/sdk/monitor.hpp"
#include "event_file.hpp"
#include "messages.hpp"

namespace capstan::monitors {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// As a block of code: every line indented by four, for Markdown.
std::string as_code(std::string_view text) {
  std::string out = "    ";
  for (const char c : text) out += c == '\n' ? "\n    " : std::string(1, c);
  return out;
}

/// The configuration's values as the page "hparams" takes them: run_info's list of [name, value].
std::vector<std::pair<std::string, HParam>> hparams_of(const sdk::Document& run_info) {
  std::vector<std::pair<std::string, HParam>> out;
  for (std::size_t i = 0; i < run_info.size("hparams"); ++i) {
    const std::string at = "/hparams/" + std::to_string(i);
    const std::string kind = run_info.text(at + "/2");
    const std::string name = run_info.text(at + "/0");
    if (kind == "boolean") {
      out.emplace_back(name, run_info.boolean(at + "/1"));
    } else if (kind == "number") {
      out.emplace_back(name, run_info.number(at + "/1"));
    } else {
      out.emplace_back(name, run_info.text(at + "/1"));
    }
  }
  return out;
}

/// Event files as TensorBoard reads them: scalars by samples, texts of the model, the configuration as text
/// and as hparams.
class TensorboardMonitor {
 public:
  TensorboardMonitor(sdk::Host host, const sdk::Params& params)
      : host_(host),
        folder_(std::filesystem::path(params.text("output_path")) / params.text("job_name")),
        job_(params.text("job_name")) {}

  void open(const sdk::Document& run_info) {
    const RunFolder own = run_folder(folder_, run_info);
    tell_folder(host_, folder_, own);
    const double now = seconds_since_1970();
    file_.emplace(own.path, now);
    std::int64_t begin = 0;
    if (run_info.has("resumed_at")) begin = run_info.integer("resumed_at");
    if (run_info.has("resumed_at") || own.begins_anew) {
      // A run that begins anew writes the texts before its first step again.
      file_->add(restart_event({now, begin == 0 ? 0 : begin + 1}));
    }
    last_step_ = begin;
    if (run_info.has("config_text")) {
      file_->add(text_event({now, begin}, "configuration", as_code(run_info.text("config_text"))));
    }
    if (run_info.has("hparams")) file_->add(session_start_event({now, begin}, job_, hparams_of(run_info)));
    file_->flush();
  }

  void write(std::span<const sdk::Metric> metrics) {
    for (const sdk::Metric& metric : metrics) {
      file().add(scalar_event({metric.wall_time, metric.x}, metric.tag, metric.value));
      last_step_ = std::max(last_step_, metric.x);
    }
    file().flush();
  }

  /// Markdown: the prompt and what follows it, each as a block of code.
  void text(std::span<const sdk::Text> texts) {
    for (const sdk::Text& one : texts) {
      const std::string shown = as_code(one.prompt) + "\n\n→\n\n" + as_code(one.text);
      file().add(text_event({one.wall_time, one.x}, one.tag, shown));
      last_step_ = std::max(last_step_, one.x);
    }
    file().flush();
  }

  void close() {
    if (!file_) return;
    file_->add(session_end_event({seconds_since_1970(), last_step_}));
    file_->flush();
    file_.reset();
  }

 private:
  EventFile& file() {
    if (!file_) throw sdk::Error("is not open.");
    return *file_;
  }

  sdk::Host host_;
  std::filesystem::path folder_;
  std::string job_;
  std::optional<EventFile> file_;
  std::int64_t last_step_ = 0;
};

}  // namespace
}  // namespace capstan::monitors

CAPSTAN_PLUGIN(&capstan::sdk::monitor<capstan::monitors::TensorboardMonitor, "tensorboard">)
