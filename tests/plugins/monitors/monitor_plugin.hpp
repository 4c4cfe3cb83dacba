#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "core/registry/host.hpp"
#include "core/registry/registry.hpp"

namespace capstan::test {

struct Row {
  std::string tag;
  double value;
  std::int64_t x;
  double wall_time = 0;
};

struct TextRow {
  std::string tag, prompt, text;
  std::int64_t step, x;
  double wall_time = 0;
};

/// A monitor's plugin, driven as the engine drives it: open, write, text, flush, close.
class MonitorPlugin {
 public:
  MonitorPlugin(const std::string& type, const Json& params, const Json& run_info)
      : component_(Registry(PluginIndex::scan()).create(type, "monitor", type, params, &host_)),
        table_(component_.vtable<capstan_monitor>()) {
    const std::string text = run_info.dump();
    call_plugin("open", [&](capstan_error* error) { return table_->open(component_.self(), as_str(text), error); });
  }
  ~MonitorPlugin() {
    capstan_error ignored;
    table_->close(component_.self(), &ignored);
  }

  void write(const std::vector<Row>& rows) {
    std::vector<capstan_metric> metrics;
    for (const Row& row : rows)
      metrics.push_back({sizeof(capstan_metric), as_str(row.tag), row.value, row.x, row.wall_time});
    std::vector<const capstan_metric*> pointers;
    for (const auto& metric : metrics) pointers.push_back(&metric);
    call_plugin("write", [&](capstan_error* error) {
      return table_->write(component_.self(), pointers.data(), pointers.size(), error);
    });
  }
  void text(const std::vector<TextRow>& rows) {
    std::vector<capstan_text> texts;
    for (const TextRow& row : rows) {
      texts.push_back({sizeof(capstan_text), as_str(row.tag), as_str(row.prompt), as_str(row.text), row.step, row.x,
                       row.wall_time});
    }
    std::vector<const capstan_text*> pointers;
    for (const auto& one : texts) pointers.push_back(&one);
    call_plugin("text", [&](capstan_error* error) {
      return table_->text(component_.self(), pointers.data(), pointers.size(), error);
    });
  }
  void flush() {
    call_plugin("flush", [&](capstan_error* error) { return table_->flush(component_.self(), error); });
  }
  void close() {
    call_plugin("close", [&](capstan_error* error) { return table_->close(component_.self(), error); });
  }

 private:
  capstan_host host_ = make_host();
  Component component_;
  const capstan_monitor* table_;
};

}  // namespace capstan::test
