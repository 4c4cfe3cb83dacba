// How many bytes zlib needs for a sample: a difficulty for curricula that begin with text that repeats itself.
//
//   capstan analyze --data corpus/ --seq 128 --plugin-path DIR --metric compressibility --out metrics/
#include <zlib.h>

#include <string>
#include <vector>

#include "capstan/sdk/metric.hpp"
#include "capstan/sdk/tensor.hpp"

namespace {

namespace sdk = capstan::sdk;

class Compressibility {
 public:
  Compressibility(const sdk::Host&, const sdk::Params& params) : level_(static_cast<int>(params.integer("level"))) {}

  sdk::MetricPlan start(const sdk::Document&) { return {}; }

  // Called by several threads: each has buffers of its own.
  void measure(const sdk::Batch& samples, std::size_t count, std::int64_t* out) const {
    const capstan_tensor tensor = samples.tensor("input_ids");
    const auto shape = sdk::shape_of(tensor);
    const sdk::Values values = sdk::values_of(tensor);
    if (shape.size() != 2 || values.dtype != sdk::Dtype::kInt64) {
      throw sdk::Error("input_ids: must be int64 [samples, tokens].");
    }
    const auto columns = static_cast<std::size_t>(shape[1]);
    const auto* tokens = static_cast<const std::int64_t*>(values.data);
    for (std::size_t i = 0; i < count; ++i) out[i] = compressed_size(tokens + i * columns, columns);
  }

 private:
  std::int64_t compressed_size(const std::int64_t* tokens, std::size_t count) const {
    // Tokens below 128 take a byte, others one for each further seven bits.
    std::vector<unsigned char> bytes;
    for (std::size_t i = 0; i < count; ++i) {
      auto token = static_cast<std::uint64_t>(tokens[i]);
      for (; token >= 128; token >>= 7) bytes.push_back(static_cast<unsigned char>(token & 127) | 128);
      bytes.push_back(static_cast<unsigned char>(token));
    }
    uLongf size = compressBound(static_cast<uLong>(bytes.size()));
    std::vector<unsigned char> out(size);
    if (compress2(out.data(), &size, bytes.data(), static_cast<uLong>(bytes.size()), level_) != Z_OK) {
      throw sdk::Error("zlib has no memory left.");
    }
    return static_cast<std::int64_t>(size);
  }

  int level_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::metric<Compressibility, "compressibility">)
