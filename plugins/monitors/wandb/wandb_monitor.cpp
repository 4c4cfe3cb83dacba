#include <string>

#include "../common/tracker_process.hpp"
#include "capstan/sdk/monitor.hpp"
#include "wandb_script.hpp"

namespace capstan::monitors {
namespace {

/// Weights & Biases, through its own Python package.
class WandbMonitor {
 public:
  WandbMonitor(sdk::Host host, const sdk::Params& params)
      : host_(host), params_(params.json()), tracker_("wandb", kScript) {}

  void open(const sdk::Document& run_info) {
    const std::string where = tracker_.open("{\"params\":" + params_ + ",\"run\":" + json_run(run_info) + "}");
    host_.info("wandb: " + where + ".");
  }
  void write(std::span<const sdk::Metric> metrics) {
    if (!metrics.empty()) tracker_.ask("write", json_rows(metrics));
  }
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
