#include "exports.hpp"

#include <algorithm>
#include <cstdio>
#include <map>

namespace capstan::profiler {
namespace {

/// Names of operators, modules and classes: printable, but for what a model's author may have put into a name.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string work_json(const Work& work) {
  return "{\"flops\": " + number(work.flops) + ", \"macs\": " + number(work.macs) +
         ", \"latency_ms\": " + number(work.latency_ms) + "}";
}

std::string module_json(const Module& module) {
  std::string children;
  for (const auto& one : module.children) children += (children.empty() ? "" : ", ") + module_json(*one);
  return "{\"path\": " + quoted(module.path) + ", \"class\": " + quoted(module.class_name) +
         ", \"params\": " + number(module.params) + ", \"forward\": " + work_json(module.forward) +
         ", \"backward\": " + work_json(module.backward) + ", \"children\": [" + children + "]}";
}

std::string operators_json(const std::vector<OpRecord>& records, bool backward) {
  struct Sum {
    std::int64_t calls = 0;
    Work work;
  };
  std::map<std::string, Sum> sums;
  for (const OpRecord& record : records) {
    if (record.backward != backward) continue;
    Sum& sum = sums[record.name];
    ++sum.calls;
    sum.work += {record.flops, record.macs, record.latency_ms()};
  }
  std::string out;
  for (const auto& [name, sum] : sums) {
    out += (out.empty() ? "" : ", ") + quoted(name) + ": {\"calls\": " + std::to_string(sum.calls) +
           ", \"work\": " + work_json(sum.work) + "}";
  }
  return "{" + out + "}";
}

}  // namespace

std::string chrome_trace(const std::vector<OpRecord>& records) {
  const std::vector<std::string> places = places_of(records);
  const std::int64_t origin = records.empty() ? 0 : records.front().begin_ns;
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (std::size_t i = 0; i < records.size(); ++i) {
    const OpRecord& record = records[i];
    out += (i ? ",\n" : "") + std::string("{\"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"cat\": ") +
           (record.backward ? "\"backward\"" : "\"forward\"") + ", \"name\": " + quoted(record.name) +
           ", \"ts\": " + number(static_cast<double>(record.begin_ns - origin) * 1e-3) +
           ", \"dur\": " + number(record.latency_ms() * 1e3) + ", \"args\": {\"module\": " + quoted(places[i]) +
           ", \"flops\": " + number(record.flops) + ", \"macs\": " + number(record.macs) + "}}";
  }
  return out + "\n]}\n";
}

std::string profile_json(const Module& model, const std::vector<OpRecord>& records, const StepFacts& facts) {
  return "{\"step\": " + std::to_string(facts.step) + ", \"samples\": " + number(facts.samples) +
         ", \"forward_ms\": " + number(facts.forward_ms) + ", \"backward_ms\": " + number(facts.backward_ms) +
         ", \"update_ms\": " + number(facts.update_ms) + ", \"peak_flops\": " + number(facts.peak_flops) +
         ", \"recomputed\": {\"flops\": " + number(facts.recomputed.flops) +
         ", \"macs\": " + number(facts.recomputed.macs) + ", \"latency_ms\": " + number(facts.recomputed.latency_ms) +
         "}" + ",\n\"forward\": " + operators_json(records, false) +
         ",\n\"backward\": " + operators_json(records, true) + ",\n\"model\": " + module_json(model) + "}\n";
}

}  // namespace capstan::profiler
