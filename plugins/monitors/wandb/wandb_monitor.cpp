#include <string>
#include <utility>

#include "../common/tracker_process.hpp"
#include "capstan/sdk/monitor.hpp"
#include "wandb_script.hpp"

namespace capstan::monitors {
namespace {

/// Weights & Biases, through its own Python package.
class WandbMonitor {
 public:
  WandbMonitor(sdk::Host host, const sdk::Params& params)
      : host_(host), params_(params.json()), helper_("wandb", kScript) {}

  void open(const sdk::Document& run_info) {
    const std::string where = helper_.ask("open", "{\"params\":" + params_ + ",\"run\":" + json_run(run_info) + "}");
    host_.info("wandb: " + where + ".");
  }
  void write(std::span<const sdk::Metric> metrics) {
    if (!metrics.empty()) helper_.ask("write", json_rows(metrics));
  }
  void flush() { helper_.ask("flush"); }
  void close() {
    if (!std::exchange(closed_, true)) helper_.ask("close");
  }

 private:
  sdk::Host host_;
  std::string params_;
  TrackerProcess helper_;
  bool closed_ = false;
};

}  // namespace
}  // namespace capstan::monitors

CAPSTAN_PLUGIN(&capstan::sdk::monitor<capstan::monitors::WandbMonitor, "wandb">)
