#include "template_plugin.hpp"

#include <capstan/sdk/monitor.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace {

namespace sdk = capstan::sdk;

/// Its functions are called from one thread, which is not the one that trains.
class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : path_(params.text("file")) {}

  void open(const sdk::Document&) {
    file_.open(path_, std::ios::trunc);
    check();
  }

  void write(std::span<const sdk::Metric> metrics) {
    for (const sdk::Metric& metric : metrics) file_ << template_plugin_line(metric.tag, metric.x, metric.value);
    file_.flush();
    check();
  }

  void close() { file_.close(); }

 private:
  /// What is thrown switches the monitor off with one warning; training goes on.
  void check() const {
    if (!file_) throw sdk::Error(path_ + ": " + std::strerror(errno) + ".");
  }

  std::string path_;
  std::ofstream file_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::monitor<TemplatePlugin, "TemplatePlugin">)
