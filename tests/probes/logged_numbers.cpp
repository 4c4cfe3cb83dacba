// A data set of numbers that logs which samples each process reads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/dataset.hpp"

namespace {

namespace sdk = capstan::sdk;

class LoggedNumbers {
 public:
  LoggedNumbers(const sdk::Host&, const sdk::Params& params)
      : samples_(params.integer("samples")), kill_at_(params.integer("kill_at")) {
    const char* rank = std::getenv("RANK");
    log_.open(params.text("log") + "." + (rank ? rank : "0"), std::ios::app);
  }

  void open(const sdk::DataSource& source) {
    length_ = source.sequence_length();
    const char* generation = std::getenv("CAPSTAN_GENERATION");
    log_ << "open" << (generation ? std::string(" ") + generation : "") << std::endl;
  }
  std::string describe() const {
    return "{\"samples\": " + std::to_string(samples_) +
           ", \"fingerprint\": \"numbers\", \"sequence_length\": " + std::to_string(length_) + "}";
  }
  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    if (++reads_ == kill_at_) std::raise(SIGKILL);
    for (const std::int64_t sample : samples) log_ << sample << ' ';
    log_ << std::endl;
    const auto rows = static_cast<std::int64_t>(samples.size());
    const at::Tensor numbers = at::from_blob(const_cast<std::int64_t*>(samples.data()), {rows, 1}, at::kLong);
    const at::Tensor tokens = numbers.add(at::arange(length_)).remainder(17);
    out.set_tensor("input_ids", sdk::lend(tokens));
    out.set_tensor("labels", sdk::lend(tokens));
  }

 private:
  std::int64_t samples_, kill_at_, length_ = 0;
  mutable std::int64_t reads_ = 0;
  mutable std::ofstream log_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::dataset<LoggedNumbers, "LoggedNumbers">)
