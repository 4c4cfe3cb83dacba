// A log file, and every way to get it wrong.
#include "capstan/sdk/monitor.hpp"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) { create_badly(params); }
  ~Bad() { close(); }

  void open(const sdk::Document&) {
    if (breaks("resumed") && std::filesystem::exists("bad.log")) throw sdk::Error("bad.log: already exists.");
    file_ = std::fopen("bad.log", "a");
    if (!file_) throw sdk::Error(std::string("bad.log: ") + std::strerror(errno) + ".");
  }

  void write(std::span<const sdk::Metric> metrics) {
    leak_in_call();
    for (const sdk::Metric& metric : metrics) {
      if (breaks("odd_metrics") && std::isnan(metric.value)) std::abort();
      if (breaks("many") && ++written_ > 5000) throw sdk::Error("I am tired.");
      std::fprintf(file_, "%.*s %g\n", static_cast<int>(metric.tag.size()), metric.tag.data(), metric.value);
    }
    if (std::fflush(file_) == 0) return;
    if (breaks("full_disk")) std::abort();
    throw sdk::Error(std::string("bad.log: ") + std::strerror(errno) + ".");
  }

  void text(std::span<const sdk::Text> texts) {
    for (const sdk::Text& one : texts) {
      if (breaks("texts") && one.text.empty()) std::abort();
      std::fprintf(file_, "%.*s\n", static_cast<int>(one.text.size()), one.text.data());
    }
  }

  void close() {
    if (breaks("never_opened") || (breaks("close_twice") && closed_)) std::fputs("bye\n", file_);
    if (file_) std::fclose(file_);
    file_ = nullptr;
    closed_ = true;
  }

 private:
  std::FILE* file_ = nullptr;
  bool closed_ = false;
  int written_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::monitor<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
