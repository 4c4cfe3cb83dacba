#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// TensorBoard's messages, serialised: each function gives the bytes of one Event. Field numbers are those of
/// tensorboard/compat/proto/{event,summary}.proto and tensorboard/plugins/hparams/plugin_data.proto.
namespace capstan::monitors {

struct Moment {
  double wall_time = 0;  // seconds since 1970
  std::int64_t step = 0;
};

/// The first Event of every file.
std::string version_event(double wall_time);

/// Tells the reader that a run starts again: what files before it hold from `moment.step` on is to be forgotten.
std::string restart_event(const Moment& moment);

std::string scalar_event(const Moment& moment, std::string_view tag, double value);

/// Markdown, shown on the page "text".
std::string text_event(const Moment& moment, std::string_view tag, std::string_view markdown);

/// Counts of values: bucket i holds those in (limits[i - 1], limits[i]].
struct Histogram {
  double min = 0, max = 0, sum = 0, sum_of_squares = 0;
  double count = 0;
  std::vector<double> limits, counts;  // equally many
};
std::string histogram_event(const Moment& moment, std::string_view tag, const Histogram& histogram);

using HParam = std::variant<bool, double, std::string>;

/// Begins a session on the page "hparams"; `group` joins the sessions of one run.
std::string session_start_event(const Moment& moment, std::string_view group,
                                const std::vector<std::pair<std::string, HParam>>& hparams);
/// Ends it. How the run ended is not known to who writes it.
std::string session_end_event(const Moment& moment);

}  // namespace capstan::monitors
