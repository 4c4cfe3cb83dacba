#include <cstdlib>
#include <filesystem>
#include <string>

#include "../common/tracker_process.hpp"
#include "capstan/sdk/monitor.hpp"
#include "wandb_script.hpp"

namespace capstan::monitors {
namespace {

/// Where the package keeps runs unless it is told otherwise; told before it starts, which may take longer than the run.
std::string offline_folder() {
  const char* chosen = std::getenv("WANDB_DIR");
  const std::filesystem::path folder = chosen && *chosen != '\0' ? chosen : ".";
  return (std::filesystem::absolute(folder) / "wandb").lexically_normal().string();
}

/// Weights & Biases, through its own Python package.
class WandbMonitor {
 public:
  WandbMonitor(sdk::Host host, const sdk::Params& params)
      : host_(host), params_(params.json()), tracker_("wandb", kScript) {}

  void open(const sdk::Document& run_info) {
    host_.info("wandb: starting; what is kept offline goes to '" + offline_folder() + "'.");
    const std::string where = tracker_.open("{\"params\":" + params_ + ",\"run\":" + json_run(run_info) + "}");
    host_.info("wandb: " + where + ".");
  }
  void write(std::span<const sdk::Metric> metrics) {
    if (!metrics.empty()) tracker_.ask("write", json_rows(metrics));
  }
  void text(std::span<const sdk::Text> texts) { tracker_.ask("text", json_texts(texts)); }
  void flush() { tracker_.ask("flush"); }
  void close() { tracker_.close(); }

 private:
  sdk::Host host_;
  std::string params_;
  Tracker tracker_;
};

}  // namespace
}  // namespace capstan::monitors

CAPSTAN_PLUGIN(&capstan::sdk::monitor<capstan::monitors::WandbMonitor, "wandb">)
