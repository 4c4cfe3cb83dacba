#include <map>
#include <string>
#include <vector>

#include "../common/tracker_process.hpp"
#include "capstan/sdk/monitor.hpp"
#include "comet_script.hpp"

namespace capstan::monitors {
namespace {

/// Comet, through its own Python package.
class CometMonitor {
 public:
  CometMonitor(sdk::Host host, const sdk::Params& params)
      : host_(host),
        params_(params.json()),
        interval_(params.integer("samples_log_interval")),
        tracker_("comet", kScript) {}

  void open(const sdk::Document& run_info) {
    const std::string where = tracker_.open("{\"params\":" + params_ + ",\"run\":" + json_run(run_info) + "}");
    host_.info("comet: " + where + ".");
  }
  void write(std::span<const sdk::Metric> metrics) {
    std::vector<sdk::Metric> due;
    for (const sdk::Metric& metric : metrics) {
      if (is_due(metric)) due.push_back(metric);
    }
    if (!due.empty()) tracker_.ask("write", json_rows(due));
  }
  void text(std::span<const sdk::Text> texts) { tracker_.ask("text", json_texts(texts)); }
  void flush() { tracker_.ask("flush"); }
  void close() { tracker_.close(); }

 private:
  /// The first of each tag, then at most one in so many samples.
  bool is_due(const sdk::Metric& metric) {
    const auto [sent, first] = last_sent_.try_emplace(std::string(metric.tag), metric.x);
    if (!first && metric.x - sent->second < interval_) return false;
    sent->second = metric.x;
    return true;
  }

  sdk::Host host_;
  std::string params_;
  std::int64_t interval_;
  Tracker tracker_;
  std::map<std::string, std::int64_t, std::less<>> last_sent_;
};

}  // namespace
}  // namespace capstan::monitors

CAPSTAN_PLUGIN(&capstan::sdk::monitor<capstan::monitors::CometMonitor, "comet">)
