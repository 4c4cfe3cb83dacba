// A monitor without LibTorch: the latest value of every metric, for Prometheus.
#include <capstan/sdk/monitor.hpp>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

namespace {

namespace sdk = capstan::sdk;

/// "Train/Samples/lr" -> "capstan_train_samples_lr": what Prometheus takes for a name.
std::string metric_name(std::string_view tag) {
  std::string name = "capstan_";
  for (const char c : tag) {
    const auto byte = static_cast<unsigned char>(c);
    name += byte < 0x80 && std::isalnum(byte) ? static_cast<char>(std::tolower(byte)) : '_';
  }
  return name;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string label(const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

class PrometheusTextfile {
 public:
  PrometheusTextfile(const sdk::Host&, const sdk::Params& params)
      : file_(params.text("file")), job_(label(params.text("job"))) {}

  void write(std::span<const sdk::Metric> metrics) {
    for (const sdk::Metric& metric : metrics) {
      latest_[metric_name(metric.tag)] = metric.value;
      samples_ = static_cast<double>(metric.x);
    }
    if (!metrics.empty()) replace_file();
  }

 private:
  /// The collector may read at any time: it sees the old file or the new one, never half of it.
  void replace_file() const {
    const std::string aside = file_ + ".tmp";
    std::ofstream out(aside, std::ios::trunc);
    line(out, "capstan_samples", samples_);
    for (const auto& [name, value] : latest_) line(out, name, value);
    out.close();
    if (!out || std::rename(aside.c_str(), file_.c_str()) != 0) {
      const int error = errno;
      std::remove(aside.c_str());
      throw sdk::Error(file_ + ": " + std::strerror(error) + ".");
    }
  }
  void line(std::ofstream& out, const std::string& name, double value) const {
    out << "# TYPE " << name << " gauge\n" << name << "{job=\"" << job_ << "\"} " << number(value) << "\n";
  }

  std::string file_, job_;
  std::map<std::string, double> latest_;
  double samples_ = 0;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::monitor<PrometheusTextfile, "prometheus_textfile">)
