#include "cli/report/report_tuning.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <variant>
#include <vector>

#include "cli/html.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--ink:#1b1b1f;--soft:#6a6a74;--grid:#dcdce3;--paper:#fff;--dot:#2563b0;--best:#c2571a}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6ea;--soft:#9a9aa6;--grid:#34343d;--paper:#17171b;--dot:#6aa5ee;--best:#ee9560}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;max-width:1120px;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1rem;margin:0 0 .3rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:1.6rem}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}.axis{stroke:var(--grid);fill:none}
circle{fill:var(--dot);fill-opacity:.75}circle.best{fill:var(--best);fill-opacity:1}.front{fill:none;stroke:var(--best)}
table{border-collapse:collapse;margin-top:1rem;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .9rem .15rem 0;text-align:right}td:first-child,th:first-child,td:last-child{text-align:left}th{color:var(--soft);font-weight:500}
)css";

struct Trial {
  std::string name, outcome, reason;
  double predicted = 0, measured = 0;  // seconds a step
  double rate = 0;                     // samples a second, or FLOPS of a device
  double memory = 0;                   // bytes
};

struct Dot {
  double x, y;
  std::string title;
  bool best;
};

std::string number(double value, const char* form = "%.4g") {
  char text[32];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Trial trial_of(const Json& entry) {
  Trial trial;
  trial.name = entry.at("name").as_string();
  trial.predicted = entry.at("predicted_seconds").as_number();
  std::vector<double> seconds;
  for (const Json& value : entry.at("seconds").as_array()) seconds.push_back(value.as_number());
  trial.measured = median(seconds);
  if (trial.measured > 0) trial.rate = entry.at("train_batch_size").as_number() / trial.measured;
  if (const Json* flops = entry.find("FLOPS_per_gpu")) trial.rate = flops->as_number();
  if (const Json* outcome = entry.find("outcome")) trial.outcome = outcome->as_string();
  if (const Json* reason = entry.find("reason")) trial.reason = reason->as_string();
  if (const Json* memory = entry.find("peak_memory")) trial.memory = memory->as_number();
  return trial;
}

constexpr double kWidth = 520, kHeight = 300, kLeft = 56, kBottom = 36;

double x_place(double x, double most) { return kLeft + x / most * (kWidth - kLeft - 12); }
double y_place(double y, double most) { return kHeight - kBottom - y / most * (kHeight - kBottom - 14); }

/// Dots on axes that begin at 0; `more` is drawn beneath them.
std::string plot(const std::string& title, const std::string& x_name, const std::string& y_name,
                 const std::vector<Dot>& dots, double x_most, double y_most, const std::string& more) {
  std::string svg = "<section><h2>" + title +
                    "</h2><svg viewBox=\"0 0 520 300\" role=\"img\"><path class=\"axis\" d=\"M" + number(kLeft) +
                    " 10V" + number(kHeight - kBottom) + "H508\"/>" + more;
  for (const Dot& dot : dots) {
    svg += "<circle r=\"4\" cx=\"" + number(x_place(dot.x, x_most)) + "\" cy=\"" + number(y_place(dot.y, y_most)) +
           "\"" + (dot.best ? " class=\"best\"" : "") + "><title>" + html_escaped(dot.title) + "</title></circle>";
  }
  return svg + "<text x=\"508\" y=\"294\" text-anchor=\"end\">" + x_name + ", up to " + number(x_most) +
         "</text><text x=\"60\" y=\"12\">" + y_name + ", up to " + number(y_most) + "</text></svg></section>\n";
}

std::string predicted_plot(const std::vector<Trial>& trials, const std::string& best) {
  std::vector<Dot> dots;
  double most = 0;
  for (const Trial& trial : trials) {
    // Before the first measurement the model knows proportions alone.
    if (trial.measured <= 0 || &trial == &trials.front()) continue;
    dots.push_back({trial.predicted * 1e3, trial.measured * 1e3, trial.name, trial.name == best});
    most = std::max({most, trial.predicted * 1e3, trial.measured * 1e3});
  }
  if (dots.empty()) return "";
  const std::string diagonal = "<path class=\"axis\" d=\"M" + number(x_place(0, 1)) + " " + number(y_place(0, 1)) +
                               "L" + number(x_place(1, 1)) + " " + number(y_place(1, 1)) + "\"/>";
  return plot("Predicted and measured", "predicted ms a step", "measured ms a step", dots, most, most, diagonal);
}

/// The points that no other beats in both memory and rate.
std::vector<const Trial*> front_of(const std::vector<Trial>& trials) {
  std::vector<const Trial*> ordered, front;
  for (const Trial& trial : trials) {
    if (trial.rate > 0 && trial.memory > 0) ordered.push_back(&trial);
  }
  std::sort(ordered.begin(), ordered.end(), [](const Trial* a, const Trial* b) {
    return a->memory != b->memory ? a->memory < b->memory : a->rate > b->rate;
  });
  for (const Trial* trial : ordered) {
    if (front.empty() || trial->rate > front.back()->rate) front.push_back(trial);
  }
  return front;
}

std::string pareto_plot(const std::vector<Trial>& trials, const std::string& rate_name) {
  const std::vector<const Trial*> front = front_of(trials);
  if (front.empty()) return "";
  std::vector<Dot> dots;
  double memory = 0, rate = 0;
  for (const Trial& trial : trials) {
    if (trial.rate <= 0 || trial.memory <= 0) continue;
    const bool on_front = std::find(front.begin(), front.end(), &trial) != front.end();
    dots.push_back({trial.memory / 1e6, trial.rate, trial.name, on_front});
    memory = std::max(memory, trial.memory / 1e6);
    rate = std::max(rate, trial.rate);
  }
  std::string path;
  for (const Trial* trial : front) {
    path += (path.empty() ? "M" : "L") + number(x_place(trial->memory / 1e6, memory)) + " " +
            number(y_place(trial->rate, rate));
  }
  return plot("Memory and rate", "MB of a process", rate_name, dots, memory, rate,
              "<path class=\"front\" d=\"" + path + "\"/>");
}

std::string table(const std::vector<Trial>& trials, const std::string& rate_name) {
  const std::vector<const Trial*> front = front_of(trials);
  std::string out = "<table><tr><th>trial</th><th>predicted ms</th><th>measured ms</th><th>" + rate_name +
                    "</th><th>MB</th><th></th></tr>\n";
  for (const Trial& trial : trials) {
    const bool on_front = std::find(front.begin(), front.end(), &trial) != front.end();
    const std::string remark = trial.measured > 0 ? (on_front ? "none beats it in both memory and rate" : "")
                                                  : trial.outcome + ": " + trial.reason;
    out += "<tr><td>" + html_escaped(trial.name) + "</td><td>" + number(trial.predicted * 1e3) + "</td><td>" +
           (trial.measured > 0 ? number(trial.measured * 1e3) : "") + "</td><td>" +
           (trial.rate > 0 ? number(trial.rate) : "") + "</td><td>" + number(trial.memory / 1e6, "%.0f") + "</td><td>" +
           html_escaped(remark) + "</td></tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace

std::string tuning_page(const std::string& title, const Json& tuning) {
  std::vector<Trial> trials;
  std::string best, rate_name = "samples a second";
  try {
    for (const Json& entry : tuning.at("tried").as_array()) trials.push_back(trial_of(entry));
    if (const Json* name = tuning.find("best")) best = name->as_string();
    const Json* metric = tuning.find("metric");
    if (metric && *metric == Json("FLOPS")) rate_name = "FLOPS of a device";
  } catch (const std::out_of_range&) {
    throw RuntimeFault(title + "/tuning.json: is not what 'capstan tune' writes.");
  } catch (const std::bad_variant_access&) {
    throw RuntimeFault(title + "/tuning.json: is not what 'capstan tune' writes.");
  }
  return "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width\"><title>" +
         html_escaped(title) + "</title><style>" + kStyle + "</style><h1>" + html_escaped(title) + "</h1>\n<p>" +
         counted(static_cast<std::int64_t>(trials.size()), "trial") +
         (best.empty() ? "" : "; the fastest is " + html_escaped(best)) + ".</p><div class=\"plots\">" +
         predicted_plot(trials, best) + pareto_plot(trials, rate_name) + "</div>\n" + table(trials, rate_name) +
         "</html>\n";
}

}  // namespace capstan::cli
