#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "capstan/sdk/dataset.hpp"
#include "capstan/sdk/tensor.hpp"
#include "plugins/data/common/token_record.hpp"
#include "plugins/data/indexed/documents.hpp"

namespace {

namespace sdk = capstan::sdk;

/// What a loss does not count.
constexpr std::int64_t kNoLabel = -100;

/// A new tensor, int64 [rows, columns], in host memory.
class NewTensor {
 public:
  NewTensor(std::int64_t rows, std::int64_t columns) {
    const std::int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
    sdk::detail::check_torch(aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_int64(),
                                                      aoti_torch_device_type_cpu(), 0, &handle_),
                             "empty_strided");
    values_ = static_cast<std::int64_t*>(sdk::values_of(handle_).data);
  }
  ~NewTensor() { aoti_torch_delete_tensor_object(handle_); }
  NewTensor(const NewTensor&) = delete;

  capstan_tensor handle() const { return handle_; }
  std::int64_t* values() const { return values_; }

 private:
  AtenTensorHandle handle_ = nullptr;
  std::int64_t* values_ = nullptr;
};

/// Tokens of indexed files as inputs and labels of a language model.
class Indexed {
 public:
  Indexed(const sdk::Host& host, const sdk::Params& params)
      : host_(host), separate_(params.text("documents") == "separate") {}

  void open(const sdk::DataSource& source) {
    length_ = source.sequence_length();
    vocabulary_ = source.vocabulary();
    if (length_ < 1) throw sdk::Error("the tokens a sample are not known. Set capstan.data.sequence_length.");
    data_.emplace(source.paths());
    for (const auto& [index, tokens] : data_->indices()) {
      const auto record = capstan::data::read_token_record(host_, index);
      if (!record) continue;
      record->check_tokens(index, tokens);
      record->check_vocabulary(index, vocabulary_);
    }
    if (data_->has_loss_masks() && !separate_) {
      throw sdk::Error("'" + source.paths().front() +
                       "' has a loss mask, and a sample of joined documents may have no token that the loss counts. "
                       "Set capstan.data.dataset to {\"type\": \"indexed\", \"params\": {\"documents\": "
                       "\"separate\"}}, or remove the .loss file.");
    }
    if (separate_) find_usable();
    samples_ = separate_ ? static_cast<std::int64_t>(usable_.size())
                         : std::max<std::int64_t>(data_->tokens() - 1, 0) / length_;
    if (samples_ > 0) return;
    const std::string first = source.paths().front(), all = std::to_string(data_->tokens()) + " tokens";
    throw sdk::Error("'" + first + "': " +
                     (separate_ ? none_usable()
                                : "holds " + all + "; a sequence of " + std::to_string(length_) + " needs " +
                                      std::to_string(length_) + " + 1. Give more data or a shorter sequence."));
  }

  std::string describe() const {
    char digest[17];
    std::snprintf(digest, sizeof digest, "%016llx",
                  static_cast<unsigned long long>(data_->fingerprint() + (separate_ ? 1 : 0)));
    return "{\"samples\": " + std::to_string(samples_) + ", \"fingerprint\": \"" + digest +
           "\", \"sequence_length\": " + std::to_string(length_) + ", \"tokens\": " + std::to_string(data_->tokens()) +
           "}";
  }

  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    const NewTensor inputs(rows, length_), labels(rows, length_);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(length_) + 1);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto place = place_of(samples[static_cast<std::size_t>(row)]);
      data_->read(place.begin, place.size, vocabulary_, tokens.data());
      std::int64_t* input = std::copy_n(tokens.begin(), place.size - 1, inputs.values() + row * length_);
      std::int64_t* label = std::copy_n(tokens.begin() + 1, place.size - 1, labels.values() + row * length_);
      for (std::int64_t i = 0; i < place.size - 1; ++i) {
        if (!data_->counts(place.begin + i + 1)) labels.values()[row * length_ + i] = kNoLabel;
      }
      std::fill_n(input, length_ + 1 - place.size, 0);
      std::fill_n(label, length_ + 1 - place.size, kNoLabel);
    }
    out.set_tensor("input_ids", inputs.handle());
    out.set_tensor("labels", labels.handle());
  }

 private:
  using Place = capstan::indexed::Documents::Place;

  void find_usable() {
    for (std::int64_t i = 0; i < data_->documents(); ++i) {
      if (has_label(data_->document(i))) usable_.push_back(i);
    }
  }

  std::string none_usable() const {
    return data_->has_loss_masks() ? "none of its documents has a token behind its first that the loss counts."
                                   : "none of its documents has two tokens.";
  }

  /// Whether the loss counts a token behind the first of those that a sample has room for.
  bool has_label(const Place& document) const {
    for (std::int64_t i = 1; i < std::min(document.size, length_ + 1); ++i) {
      if (data_->counts(document.begin + i)) return true;
    }
    return false;
  }

  Place place_of(std::int64_t sample) const {
    if (sample < 0 || sample >= samples_) {
      throw sdk::Error("sample " + std::to_string(sample) + " was asked for, and there are " +
                       std::to_string(samples_) + ".");
    }
    if (!separate_) return {sample * length_, length_ + 1};
    const Place place = data_->document(usable_[static_cast<std::size_t>(sample)]);
    return {place.begin, std::min(place.size, length_ + 1)};
  }

  sdk::Host host_;
  bool separate_;
  std::int64_t length_ = 0, vocabulary_ = 0, samples_ = 0;
  std::optional<capstan::indexed::Documents> data_;
  std::vector<std::int64_t> usable_;  // with a label
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::dataset<Indexed, "indexed">)
