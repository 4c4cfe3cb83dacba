#include <cmath>
#include <cstdio>
#include <set>

#include "cli/html.hpp"
#include "cli/report/report.hpp"

namespace capstan::cli {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// A plot of some metrics together, where there are any of them.
struct PlotOf {
  const char* title;
  bool stacked;
  std::vector<std::pair<const char*, const char*>> lines;  // name in the key, metric
};

const std::vector<PlotOf>& known_plots() {
  static const std::vector<PlotOf> kPlots = {
      {"Loss", false, {{"training", "Train_Samples_train_loss"}, {"evaluation", "Train_Samples_eval_loss"}}},
      {"Learning rate", false, {{"lr", "Train_Samples_lr"}}},
      {"Throughput, samples a second", false, {{"throughput", "Train_Samples_samples_per_second"}}},
      {"Memory, MB", false, {{"memory", "Train_Samples_memory_mb"}}},
      {"Time of a step, ms",
       true,
       {{"forward", "Train_Samples_elapsed_time_ms_forward"},
        {"backward", "Train_Samples_elapsed_time_ms_backward"},
        {"step", "Train_Samples_elapsed_time_ms_step"}}},
      {"Communication, ms",
       false,
       {{"in backward", "Train_Samples_elapsed_time_ms_backward_allreduce"},
        {"of the whole step", "Train_Samples_comms_ms"}}},
      {"Communication, MB sent", false, {{"sent", "Train_Samples_comms_mb_sent"}}},
      {"Offload, MB",
       false,
       {{"read", "Train_Samples_offload_mb_read"}, {"written", "Train_Samples_offload_mb_written"}}},
      {"Offload, ms waited", false, {{"waited", "Train_Samples_offload_wait_ms"}}},
      {"Processes", false, {{"processes", "Train_Elastic_processes"}}},
      {"Seconds lost since the run began",
       true,
       {{"steps done again", "Train_Elastic_seconds_repeated"},
        {"regrouping", "Train_Elastic_seconds_regrouping"},
        {"waiting for processes", "Train_Elastic_seconds_waiting"}}},
      {"Gradient norm", false, {{"norm", "Train_Samples_grad_norm"}}},
      {"Loss scale", false, {{"scale", "Train_Samples_loss_scale"}}},
  };
  return kPlots;
}

std::string plot(const std::string& title, const std::vector<std::pair<std::string, const Series*>>& lines,
                 bool stacked) {
  std::string key;
  for (std::size_t i = 0; i < lines.size() && lines.size() > 1; ++i) {
    key += "<i style=\"background:var(--c" + std::to_string(i % 6) + ")\"></i>" + html_escaped(lines[i].first);
  }
  return "<section><h2>" + html_escaped(title) + "</h2>" + plot_svg(lines, stacked) +
         (key.empty() ? "" : "<p class=\"key\">" + key + "</p>") + "</section>\n";
}

std::string table(const std::map<std::string, Series>& metrics) {
  std::string out =
      "<table><tr><th>metric</th><th>points</th><th>first</th><th>last</th><th>least</th><th>greatest</th></tr>\n";
  for (const auto& [name, series] : metrics) {
    double least = std::nan(""), most = std::nan("");
    for (const auto& point : series) {
      least = std::fmin(least, point.second);  // fmin and fmax pass over NaN
      most = std::fmax(most, point.second);
    }
    out += "<tr><td>" + html_escaped(name) + "</td><td>" + std::to_string(series.size()) + "</td>";
    for (const double value : {series.front().second, series.back().second, least, most}) {
      out += "<td>" + number(value) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string colors() {
  std::string out;
  for (int i = 0; i < 6; ++i) {
    const std::string name = ".c" + std::to_string(i), color = "var(--c" + std::to_string(i) + ")";
    out += name + ".line{stroke:" + color + "}" + name + ".area," + name + ".dot{fill:" + color + "}";
  }
  return out;
}

}  // namespace

std::string report_page(const std::string& title, const std::map<std::string, Series>& metrics) {
  std::set<std::string> shown;
  std::string plots;
  for (const PlotOf& known : known_plots()) {
    std::vector<std::pair<std::string, const Series*>> lines;
    for (const auto& [label, metric] : known.lines) {
      const auto found = metrics.find(metric);
      if (found == metrics.end()) continue;
      lines.emplace_back(label, &found->second);
      shown.insert(metric);
    }
    if (!lines.empty()) plots += plot(known.title, lines, known.stacked);
  }
  for (const auto& [name, series] : metrics) {
    if (!shown.contains(name)) plots += plot(name, {{name, &series}}, false);
  }
  return html_page(title, colors(),
                   "<h1>" + html_escaped(title) + "</h1>\n<div class=\"plots\">\n" + plots +
                       "</div>\n<h2>All metrics</h2>\n" + table(metrics));
}

}  // namespace capstan::cli
