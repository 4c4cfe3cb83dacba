// The bytes of a file as samples, and every way to get it wrong.
#include "capstan/sdk/dataset.hpp"

#include <ATen/ops/empty.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include "bad.hpp"
#include "capstan/sdk/aten.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

std::atomic<int> instances;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) : instance_(++instances) { create_badly(params); }

  void open(const sdk::DataSource& source) {
    std::ifstream in(source.paths().at(0), std::ios::binary);
    if (!in && breaks("missing")) return;
    if (!in)
      throw sdk::Error(breaks("missing_name") ? "cannot be read" : "'" + source.paths()[0] + "': cannot be read");
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    length_ = source.sequence_length();
  }

  std::string describe() const {
    if (breaks("describe_json")) return "samples: many";
    if (breaks("describe_samples")) return R"({"samples": 0, "fingerprint": "x"})";
    if (breaks("describe_bytes")) return R"({"samples": 4, "fingerprint": "x", "bytes_per_token": 0})";
    if (breaks("describe_fingerprint")) return R"({"samples": 4})";
    return "{\"samples\": " + std::to_string(static_cast<std::int64_t>(bytes_.size()) / length_) +
           ", \"sequence_length\": " + std::to_string(breaks("rows_length") ? length_ + 1 : length_) +
           ", \"fingerprint\": \"" + std::to_string(bytes_.size() + (breaks("describe") ? instance_ : 0)) + "\"}";
  }

  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    leak_in_call();
    const auto rows = static_cast<std::int64_t>(samples.size()) + (breaks("rows_count") ? 1 : 0);
    const at::Tensor tokens = at::empty({rows, length_}, at::kLong);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto last = static_cast<std::int64_t>(samples.size()) - 1;
      const auto sample = samples[static_cast<std::size_t>(breaks("rows") ? 0 : std::min(row, last))];
      for (std::int64_t i = 0; i < length_; ++i) {
        tokens.mutable_data_ptr<std::int64_t>()[row * length_ + i] =
            bytes_[static_cast<std::size_t>(sample * length_ + i)];
      }
    }
    if (breaks("again")) tokens.add_(++reads_);
    if (breaks("again_instance")) tokens.add_(instance_);
    if (breaks("threads")) {
      const int inside = ++inside_;
      std::this_thread::yield();
      if (inside > 1) tokens.add_(1);
      --inside_;
    }
    out.set_tensor("input_ids", sdk::lend(tokens));
  }

 private:
  int instance_;
  std::string bytes_;
  std::int64_t length_ = 1;
  mutable std::int64_t reads_ = 0;
  mutable std::atomic<int> inside_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::dataset<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
