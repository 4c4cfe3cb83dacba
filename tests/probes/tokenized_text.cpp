// A data set that reads a file of text, and tokenizes it when it is opened.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/dataset.hpp"
#include "capstan/sdk/tokenizer.hpp"

namespace {

namespace sdk = capstan::sdk;

class TokenizedText {
 public:
  TokenizedText(const sdk::Host& host, const sdk::Params& params) : tokenizer_(host, params.text("tokenizer")) {}

  void open(const sdk::DataSource& source) {
    length_ = std::max<std::int64_t>(source.sequence_length(), 1);
    if (source.vocabulary() > 0 && tokenizer_.vocabulary() > source.vocabulary()) {
      throw sdk::Error("the tokenizer has " + std::to_string(tokenizer_.vocabulary()) +
                       " tokens, and the model's vocabulary " + std::to_string(source.vocabulary()) + ".");
    }
    for (const std::string& path : source.paths()) {
      std::ifstream in(path, std::ios::binary);
      tokenizer_.encode(std::string(std::istreambuf_iterator<char>(in), {}), tokens_);
      if (const auto end = tokenizer_.end_token()) tokens_.push_back(*end);
    }
  }
  std::string describe() const {
    // What comes back is the text, without the special token at its end.
    return "{\"samples\": " + std::to_string((std::ssize(tokens_) - 1) / length_) + ", \"fingerprint\": \"" +
           std::to_string(tokens_.size()) + " tokens\", \"sequence_length\": " + std::to_string(length_) +
           ", \"vocabulary\": " + std::to_string(tokenizer_.vocabulary()) +
           ", \"characters\": " + std::to_string(tokenizer_.decode(tokens_).size()) + "}";
  }
  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    const at::Tensor inputs = at::empty({rows, length_}, at::kLong), labels = at::empty({rows, length_}, at::kLong);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto first = tokens_.begin() + samples[static_cast<std::size_t>(row)] * length_;
      std::copy(first, first + length_, inputs.data_ptr<std::int64_t>() + row * length_);
      std::copy(first + 1, first + 1 + length_, labels.data_ptr<std::int64_t>() + row * length_);
    }
    out.set_tensor("input_ids", sdk::lend(inputs));
    out.set_tensor("labels", sdk::lend(labels));
  }

 private:
  sdk::Tokenizer tokenizer_;
  std::vector<std::int32_t> tokens_;
  std::int64_t length_ = 0;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::dataset<TokenizedText, "TokenizedText">)
