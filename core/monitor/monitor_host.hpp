#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/registry/registry.hpp"
#include "core/text/json.hpp"

namespace capstan {

struct Metric {
  std::string tag;  // "Train/Samples/lr"
  double value = 0;
  std::int64_t x = 0;  // global samples
};

/// A text that the model has written; UTF-8.
struct MonitorText {
  std::string tag;  // "Train/Samples/generated_1"
  std::string prompt, text;
  std::int64_t step = 0;
  std::int64_t x = 0;  // global samples
};

/// How long a monitor may take. A tracker's package takes half a minute to start on a busy machine, and until then it
/// has written nothing.
struct MonitorPatience {
  std::chrono::milliseconds say_after = std::chrono::seconds(1);  // when the end of a run says that it waits
  std::chrono::milliseconds give_up = std::chrono::seconds(60);   // when it waits no longer
  std::chrono::milliseconds hangs = std::chrono::seconds(30);     // when a call of a running run is said to hang
};

/// Runs each monitor on a thread of its own, so that neither training nor another monitor waits for it. A monitor that
/// fails is switched off with one warning, one that hangs gets one while it does; metrics that a slow one cannot take
/// are dropped, counted and said; a text counts as a metric. One more thread hands the metrics out, ten times a second,
/// so that neither the number of monitors nor waking them costs training anything. [engine]
class MonitorHost {
 public:
  /// `run_info` goes to each monitor's open().
  MonitorHost(std::vector<Component> monitors, const Json& run_info, MonitorPatience patience = {});
  /// Closes the monitors. Waits for those that are at work or hang, says so, and gives up at last.
  ~MonitorHost();
  MonitorHost(const MonitorHost&) = delete;
  MonitorHost& operator=(const MonitorHost&) = delete;

  /// Queues the metrics with the time of the call. Never blocks on a monitor.
  void write(std::vector<Metric> metrics);
  /// Queues texts in the same way, behind the metrics so far. A monitor that takes no texts says so once in the log.
  void write_texts(std::vector<MonitorText> texts);
  /// Waits until all that was queued is written and flushed, or the deadline passes; false then.
  bool flush(std::int64_t deadline_ms = 5000);

  std::int64_t dropped() const;

 private:
  struct Worker;
  struct Inbox;
  void hand_out();
  void await_close(const std::shared_ptr<Worker>& worker, std::chrono::steady_clock::time_point asked) const;
  const MonitorPatience patience_;
  std::unique_ptr<Inbox> inbox_;
  std::vector<std::shared_ptr<Worker>> workers_;  // shared with the threads, which outlive this when a monitor hangs
};

}  // namespace capstan
