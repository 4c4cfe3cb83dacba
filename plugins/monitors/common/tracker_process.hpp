#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "capstan/sdk/monitor.hpp"
#include "json_text.hpp"

namespace capstan::monitors {

/// Metrics as JSON: [[x, {tag: value}], ...], those of one x together. NaN and infinities as Python's json reads them.
std::string json_rows(std::span<const sdk::Metric> metrics);

/// What trackers are told of a run: {"facts": {name: value}, "config_text": ".."}.
std::string json_run(const sdk::Document& run_info);

/// A Python process that drives a tracker's own package. It answers every request; when it dies, the next request says
/// so. It is not ended by Ctrl-C, and finishes by itself when this process ends without a word.
class TrackerProcess {
 public:
  /// Starts $CAPSTAN_PYTHON, or python3, on `script`, and waits until it has found its package. Throws sdk::Error with
  /// what is missing and how to get it.
  TrackerProcess(std::string name, std::string_view script);
  ~TrackerProcess();
  TrackerProcess(TrackerProcess&& other) noexcept;
  TrackerProcess& operator=(TrackerProcess&&) = delete;

  /// Sends [request, argument] as JSON and waits for the answer, a text. Throws sdk::Error with the helper's own
  /// sentence.
  std::string ask(std::string_view request, std::string_view argument = "null");

 private:
  std::string read_line();
  std::string how_it_ended();

  std::string name_;
  pid_t pid_ = -1;
  int channel_ = -1;
  std::string pending_;
};

/// A monitor's tracker. Made cheaply once the package is known to be there: the first of a process starts the helper to
/// find out, the others when they are opened.
class Tracker {
 public:
  Tracker(std::string name, std::string_view script);

  /// Opens with a document of JSON; what the helper says of where the run is kept.
  std::string open(const std::string& document);
  /// Asks the helper, which must have been opened.
  void ask(std::string_view request, std::string_view argument = "null");
  void close();

 private:
  std::string name_;
  std::string_view script_;
  std::optional<TrackerProcess> helper_;
  bool opened_ = false;
};

}  // namespace capstan::monitors
