#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "../../monitors/tensorboard/event_file.hpp"
#include "capstan/sdk/observer.hpp"
#include "capstan/sdk/output_folder.hpp"
#include "histogram.hpp"

namespace capstan::observers {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path numbered(const std::filesystem::path& job, std::int64_t number) {
  const std::filesystem::path own = job.string() + (number == 1 ? "" : "-" + std::to_string(number));
  return own / "histograms";
}

/// The first number whose folder no other run has; makes it. Throws std::exception naming the folder.
std::int64_t take_number(const sdk::Host& host, const std::filesystem::path& job) {
  for (std::int64_t number = 1;; ++number) {
    const std::filesystem::path folder = numbered(job, number);
    if (const std::string made = sdk::make_folder(folder.parent_path()); !made.empty()) host.info(made);
    // Of two runs that begin at the same moment, create_directory() is true for one.
    if (std::filesystem::create_directory(folder)) return number;
  }
}

/// Distributions of weights and gradients every `interval` steps, in an event file of rank 0.
class TensorboardHistograms {
 public:
  TensorboardHistograms(sdk::Host host, const sdk::Params& params)
      : host_(host),
        interval_(params.integer("interval")),
        weights_(params.boolean("weights")),
        gradients_(params.boolean("gradients")),
        job_(std::filesystem::path(params.text("output_path")) / params.text("job_name")) {}

  void event(const capstan_event& event, const sdk::Parameters& parameters) {
    if (host_.rank() != 0) return;
    switch (event.kind) {
      case CAPSTAN_EVENT_LOADED:
        resumed_at_ = event.global_samples;
        break;
      case CAPSTAN_EVENT_UPDATE_BEGIN:
        due_ = (event.global_step + 1) % interval_ == 0;
        // The gradients are dropped when the step ends.
        if (due_ && gradients_) collect(parameters, CAPSTAN_ROLE_GRADIENT, "gradients/");
        break;
      case CAPSTAN_EVENT_STEP_END:
        if (!due_) break;
        if (weights_) collect(parameters, CAPSTAN_ROLE_MASTER, "weights/");
        write(event.global_samples);
        due_ = false;
        break;
      default:
        break;
    }
  }

  /// The number of the run's folder, so that a resumed run goes on there. 0: the run has not written yet.
  void save(const sdk::Sink& sink) const { sink.write("{\"number\": " + std::to_string(number_) + "}"); }
  void load(const sdk::Document& saved) { number_ = std::max<std::int64_t>(saved.integer("number"), 0); }

 private:
  void collect(const sdk::Parameters& parameters, capstan_role role, const std::string& prefix) {
    parameters.visit([&](std::string_view name, capstan_tensor tensor, capstan_role found) {
      if (found != role) return;
      monitors::Histogram histogram = histogram_of(tensor);
      if (histogram.count > 0) collected_.emplace_back(prefix + std::string(name), std::move(histogram));
    });
  }

  void write(std::int64_t samples) {
    const double now = seconds_since_1970();
    if (!file_) {
      if (number_ == 0) number_ = take_number(host_, job_);
      const std::filesystem::path folder = numbered(job_, number_);
      if (number_ > 1)
        host_.info("another run wrote '" + numbered(job_, 1).string() + "'; this run's histograms are in '" +
                   folder.string() + "'.");
      file_.emplace(folder, now);
      if (resumed_at_) file_->add(monitors::restart_event({now, *resumed_at_ + 1}));
    }
    for (const auto& [tag, histogram] : collected_) {
      file_->add(monitors::histogram_event({now, samples}, tag, histogram));
    }
    collected_.clear();
    file_->flush();
  }

  sdk::Host host_;
  std::int64_t interval_;
  bool weights_, gradients_;
  std::filesystem::path job_;
  std::int64_t number_ = 0;
  bool due_ = false;
  std::optional<std::int64_t> resumed_at_;
  std::optional<monitors::EventFile> file_;
  std::vector<std::pair<std::string, monitors::Histogram>> collected_;
};

}  // namespace
}  // namespace capstan::observers

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::observers::TensorboardHistograms, "tensorboard_histograms">)
