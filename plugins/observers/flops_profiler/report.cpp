#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

namespace capstan::profiler {
namespace {

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

/// Two decimals without zeros at the end.
std::string rounded(double value) {
  std::string text = format("%.2f", value);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string line(const std::string& label, const std::string& value) {
  char text[256];
  std::snprintf(text, sizeof text, "%-70s  %-8s\n", label.c_str(), value.c_str());
  return text;
}

std::string rate(double flops, double ms) { return ms > 0 ? number_text(flops / ms * 1e3, "FLOPS") : "0 FLOPS"; }

constexpr const char* kNotations =
    "\nNotations:\n"
    "data parallel size (dp_size), model parallel size (mp_size),\n"
    "number of parameters (params), number of multiply-accumulate operations (MACs),\n"
    "number of floating-point operations (flops), floating-point operations per second (FLOPS),\n"
    "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
    "step (weights update latency), iter latency (sum of fwd, bwd and step latency)\n\n";

std::string summary(const Module& model, const StepFacts& facts) {
  const Work& forward = model.forward;
  const double b = 2 + facts.recompute_factor;
  const double both_ms = facts.forward_ms + facts.backward_ms, iter_ms = both_ms + facts.update_ms;
  const auto times = [](double factor) { return rounded(factor); };
  std::string out;
  out += line("world size:", std::to_string(facts.world_size));
  out += line("data parallel size:", std::to_string(facts.world_size));
  out += line("model parallel size:", "1");
  out += line("batch size per GPU:", rounded(facts.micro_batch));
  out += line("params per GPU:", params_text(model.params));
  out += line("params of model = params per GPU * mp_size:", params_text(model.params));
  out += line("fwd MACs per GPU:", number_text(forward.macs, "MACs"));
  out += line("fwd flops per GPU:", number_text(forward.flops, ""));
  out += line("fwd flops of model = fwd flops per GPU * mp_size:", number_text(forward.flops, ""));
  out += line("fwd latency:", number_text(facts.forward_ms * 1e-3, "s"));
  out += line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency:", rate(forward.flops, facts.forward_ms));
  out += line("bwd latency:", number_text(facts.backward_ms * 1e-3, "s"));
  out += line("bwd FLOPS per GPU = " + times(b) + " * fwd flops per GPU / bwd latency:",
              rate(b * forward.flops, facts.backward_ms));
  out += line("fwd+bwd FLOPS per GPU = " + times(b + 1) + " * fwd flops per GPU / (fwd+bwd latency):",
              rate((b + 1) * forward.flops, both_ms));
  out += line("step latency:", number_text(facts.update_ms * 1e-3, "s"));
  out += line("iter latency:", number_text(iter_ms * 1e-3, "s"));
  out += line("FLOPS per GPU = " + times(b + 1) + " * fwd flops per GPU / iter latency:",
              rate((b + 1) * forward.flops, iter_ms));
  out += line("samples/second:", iter_ms > 0 ? rounded(facts.samples / iter_ms * 1e3) : "0");
  // What backward really computed, operator by operator, beside the estimate above.
  out += line("bwd MACs per GPU, counted:", number_text(model.backward.macs, "MACs"));
  out += line("bwd flops per GPU, counted:", number_text(model.backward.flops, ""));
  if (facts.recomputed.latency_ms > 0) {
    out += line("flops of activations computed again, counted:", number_text(facts.recomputed.flops, ""));
    out += line("MACs of activations computed again, counted:", number_text(facts.recomputed.macs, "MACs"));
    out += line("latency of it, a part of bwd latency:", number_text(facts.recomputed.latency_ms * 1e-3, "s"));
  }
  if (facts.peak_flops > 0 && iter_ms > 0) {
    const double reached = (forward.flops + model.backward.flops) / iter_ms * 1e3;
    out += line("peak FLOPS (" + facts.peak_source + "):", number_text(facts.peak_flops, "FLOPS"));
    out += line("model flop utilisation = counted fwd+bwd flops / iter latency / peak:",
                rounded(100 * reached / facts.peak_flops) + " %");
  }
  return out;
}

using Values = std::map<std::string, double>;  // by class

void add_level(const Module& module, int depth, double (*value)(const Module&), Values& values) {
  if (depth == 0) {
    values[module.class_name] += value(module);
    return;
  }
  for (const auto& one : module.children) add_level(*one, depth - 1, value, values);
}

/// "{'Linear': '4.11 GMACs', ...}" of the largest.
std::string largest(const Module& model, int depth, int count, double (*value)(const Module&),
                    std::string (*text)(double)) {
  Values values;
  add_level(model, depth, value, values);
  std::vector<std::pair<std::string, double>> sorted(values.begin(), values.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out;
  for (std::size_t i = 0; i < sorted.size() && i < static_cast<std::size_t>(count); ++i) {
    out += (i ? ", '" : "'") + sorted[i].first + "': '" + text(sorted[i].second) + "'";
  }
  return "{" + out + "}";
}

std::string macs_text(double value) { return number_text(value, "MACs"); }
std::string seconds_text(double value) { return number_text(value, "s"); }

std::string aggregated(const Module& model, const ReportOptions& options) {
  const int levels = options.module_depth < 0 ? depth_of(model) : std::min(options.module_depth + 1, depth_of(model));
  std::string out =
      "\n----------------------------- Aggregated Profile per GPU -----------------------------\n"
      "Top " +
      std::to_string(options.top_modules) +
      " modules in terms of params, MACs or fwd latency at different model depths:\n";
  for (int depth = 0; depth < levels; ++depth) {
    const auto row = [&](double (*value)(const Module&), std::string (*text)(double)) {
      return largest(model, depth, options.top_modules, value, text) + "\n";
    };
    out += "depth " + std::to_string(depth) + ":\n";
    out += "    params      - " + row([](const Module& module) { return module.params; }, params_text);
    out += "    MACs        - " + row([](const Module& module) { return module.forward.macs; }, macs_text);
    out +=
        "    fwd latency - " + row([](const Module& module) { return module.forward.latency_ms * 1e-3; }, seconds_text);
  }
  return out;
}

std::string share(double part, double whole) { return rounded(whole > 0 ? 100 * part / whole : 0) + "%"; }

void add_module(const Module& module, const Module& model, int level, std::string& out) {
  const std::string indent(static_cast<std::size_t>(level) * 2, ' ');
  const Work& work = module.forward;
  out += indent + (module.name.empty() ? "" : "(" + module.name + "): ") + module.class_name + "(\n";
  out += indent + "  " + params_text(module.params) + " = " + share(module.params, model.params) + " Params, " +
         number_text(work.macs, "MACs") + " = " + share(work.macs, model.forward.macs) + " MACs, " +
         number_text(work.latency_ms * 1e-3, "s") + " = " + share(work.latency_ms, model.forward.latency_ms) +
         " latency, " + rate(work.flops, work.latency_ms) + "; bwd " + number_text(module.backward.macs, "MACs") +
         ", " + number_text(module.backward.latency_ms * 1e-3, "s") + "\n";
  for (const auto& one : module.children) add_module(*one, model, level + 1, out);
  out += indent + ")\n";
}

std::string detailed(const Module& model) {
  std::string out =
      "\n------------------------------ Detailed Profile per GPU ------------------------------\n"
      "Each module profile is listed after its name in the following order:\n"
      "params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd "
      "latency,\n"
      "fwd FLOPS; MACs and latency of backward\n\n"
      "Note: operators that belong to no module of their own are counted in the innermost module around them. A "
      "latency\n"
      "is the sum over the operators of a module and of those below it. Flops are those of the mathematical "
      "operation;\n"
      "what a kernel really executes may differ.\n\n";
  add_module(model, model, 0, out);
  return out;
}

}  // namespace

std::string number_text(double value, const std::string& suffix) {
  struct Unit {
    double size;
    const char* name;
  };
  static constexpr Unit kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "K"}, {1, ""}, {1e-3, "m"}, {1e-6, "u"}};
  if (value == 0) return "0 " + suffix;
  for (const Unit& unit : kUnits) {
    if (value >= unit.size || unit.size == 1e-6) return rounded(value / unit.size) + " " + unit.name + suffix;
  }
  return "";
}

std::string params_text(double value) {
  if (value >= 1e9) return rounded(value / 1e9) + " B";
  std::string text = number_text(value, "");
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string report_text(const Module& model, const StepFacts& facts, const ReportOptions& options) {
  std::string out =
      "\n--------------------------- Capstan Flops Profiler ---------------------------\n"
      "Profile Summary at step " +
      std::to_string(facts.step) + ":\n" + kNotations;
  out += summary(model, facts);
  out += aggregated(model, options);
  if (options.detailed) out += detailed(model);
  return out + "------------------------------------------------------------------------------\n";
}

}  // namespace capstan::profiler
