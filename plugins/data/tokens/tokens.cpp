#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/dataset.hpp"
#include "token_data.hpp"

namespace {

namespace sdk = capstan::sdk;
using capstan::data::TokenData;

TokenData::Format format_named(const std::string& name) {
  static const std::map<std::string, TokenData::Format, std::less<>> kNames = {{"auto", TokenData::Format::kAuto},
                                                                               {"bytes", TokenData::Format::kBytes},
                                                                               {"uint16", TokenData::Format::kUint16},
                                                                               {"uint32", TokenData::Format::kUint32}};
  return kNames.at(name);
}

/// Sample i is tokens [i*T, i*T + T + 1): the inputs, and the labels one token later.
class Tokens {
 public:
  Tokens(sdk::Host host, const sdk::Params& params) : host_(host), format_(format_named(params.text("format"))) {}

  void open(const sdk::DataSource& source) {
    data_.emplace(
        source.paths(), format_, source.sequence_length(),
        [this](const std::string& text) { host_.info("data: " + text); },
        [this](const std::filesystem::path& of) { return capstan::data::read_token_record(host_, of); });
    if (source.vocabulary() > 0) data_->set_vocabulary(source.vocabulary());
  }

  std::string describe() const {
    char digest[17];
    std::snprintf(digest, sizeof digest, "%016llx", static_cast<unsigned long long>(data_->fingerprint()));
    return "{\"samples\": " + std::to_string(data_->samples()) + ", \"tokens\": " + std::to_string(data_->tokens()) +
           ", \"sequence_length\": " + std::to_string(data_->sequence_length()) +
           (data_->are_bytes() ? ", \"bytes_per_token\": 1" : "") + ", \"fingerprint\": \"" + digest + "\"}";
  }

  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    const std::int64_t length = data_->sequence_length(), rows = static_cast<std::int64_t>(samples.size());
    const at::Tensor inputs = at::empty({rows, length}, at::kLong), labels = at::empty({rows, length}, at::kLong);
    std::vector<std::int64_t> sample(static_cast<std::size_t>(length) + 1);
    for (std::int64_t row = 0; row < rows; ++row) {
      data_->read(samples[static_cast<std::size_t>(row)], sample.data());
      std::copy_n(sample.begin(), length, inputs.mutable_data_ptr<std::int64_t>() + row * length);
      std::copy_n(sample.begin() + 1, length, labels.mutable_data_ptr<std::int64_t>() + row * length);
    }
    out.set_tensor("input_ids", sdk::lend(inputs));
    out.set_tensor("labels", sdk::lend(labels));
  }

 private:
  sdk::Host host_;
  TokenData::Format format_;
  std::optional<TokenData> data_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::dataset<Tokens, "tokens">)
