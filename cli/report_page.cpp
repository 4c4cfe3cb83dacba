#include <cmath>
#include <cstdio>
#include <set>

#include "cli/report.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--ink:#1b1b1f;--soft:#6a6a74;--grid:#dcdce3;--paper:#fff;
--c0:#2563b0;--c1:#c2571a;--c2:#2c8a4b;--c3:#8d3fa8;--c4:#a8862a;--c5:#b02a50}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6ea;--soft:#9a9aa6;--grid:#34343d;--paper:#17171b;
--c0:#6aa5ee;--c1:#ee9560;--c2:#66c488;--c3:#c98ae0;--c4:#d9bb66;--c5:#ec7c9c}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;max-width:1120px;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1rem;margin:0 0 .3rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:1.6rem}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}.area{stroke:none;fill-opacity:.75}
.bad{fill:var(--c5)}.key{font-size:.85rem;color:var(--soft);margin:0}.key i{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .9em}
table{border-collapse:collapse;margin-top:.4rem;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .9rem .15rem 0;text-align:right}td:first-child,th:first-child{text-align:left}th{color:var(--soft);font-weight:500}
)css";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

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
    key += "<i style=\"background:var(--c" + std::to_string(i % 6) + ")\"></i>" + escaped(lines[i].first);
  }
  return "<section><h2>" + escaped(title) + "</h2>" + plot_svg(lines, stacked) +
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
    out += "<tr><td>" + escaped(name) + "</td><td>" + std::to_string(series.size()) + "</td>";
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
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>" +
         escaped(title) + "</title><style>" + kStyle + colors() + "</style></head><body>\n<h1>" + escaped(title) +
         "</h1>\n<div class=\"plots\">\n" + plots + "</div>\n<h2>All metrics</h2>\n" + table(metrics) +
         "</body></html>\n";
}

}  // namespace capstan::cli
