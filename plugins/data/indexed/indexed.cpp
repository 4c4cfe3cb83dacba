#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "capstan/sdk/dataset.hpp"
#include "capstan/sdk/tensor.hpp"
#include "plugins/data/common/token_record.hpp"
#include "plugins/data/indexed/documents.hpp"

namespace {

namespace sdk = capstan::sdk;

/// What a loss does not count.
constexpr std::int64_t kNoLabel = -100;

/// The id of the place behind the last document of a row.
constexpr std::int32_t kNoDocument = -1;

/// A new tensor [rows, columns] in host memory, of int64 or int32.
template <class T>
class NewTensor {
 public:
  NewTensor(std::int64_t rows, std::int64_t columns) {
    const std::int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
    const auto type = sizeof(T) == 8 ? aoti_torch_dtype_int64() : aoti_torch_dtype_int32();
    sdk::detail::check_torch(
        aoti_torch_empty_strided(2, sizes, strides, type, aoti_torch_device_type_cpu(), 0, &handle_), "empty_strided");
    values_ = static_cast<T*>(sdk::values_of(handle_).data);
    columns_ = columns;
  }
  ~NewTensor() { aoti_torch_delete_tensor_object(handle_); }
  NewTensor(const NewTensor&) = delete;

  capstan_tensor handle() const { return handle_; }
  T* row(std::int64_t row) const { return values_ + row * columns_; }

 private:
  AtenTensorHandle handle_ = nullptr;
  T* values_ = nullptr;
  std::int64_t columns_ = 0;
};

enum class Samples { kJoined, kSeparate, kPacked };

/// Tokens of indexed files as inputs and labels of a language model.
class Indexed {
 public:
  Indexed(const sdk::Host& host, const sdk::Params& params) : host_(host), documents_(params.text("documents")) {}

  void open(const sdk::DataSource& source) {
    length_ = source.sequence_length();
    vocabulary_ = source.vocabulary();
    data_.emplace(source.paths());
    for (const auto& [index, tokens] : data_->indices()) {
      const auto record = capstan::data::read_token_record(host_, index);
      if (!record) continue;
      record->check_tokens(index, tokens);
      record->check_vocabulary(index, vocabulary_);
    }
    const std::string first = source.paths().front();
    kind_ = kind_of_samples(first);
    if (kind_ == Samples::kPacked) fit_rows(first);
    if (length_ < 1) throw sdk::Error("the tokens a sample are not known. Set capstan.data.sequence_length.");
    if (kind_ != Samples::kJoined) find_usable();
    samples_ = kind_ == Samples::kJoined ? std::max<std::int64_t>(data_->tokens() - 1, 0) / length_
                                         : static_cast<std::int64_t>(usable_.size());
    if (samples_ > 0) return;
    throw sdk::Error("'" + first + "': " + (kind_ == Samples::kJoined ? too_short() : none_usable()));
  }

  std::string describe() const {
    const bool packed = kind_ == Samples::kPacked;
    char digest[17];
    std::snprintf(digest, sizeof digest, "%016llx",
                  static_cast<unsigned long long>(data_->fingerprint(packed) + (kind_ == Samples::kSeparate ? 1 : 0)));
    return "{\"samples\": " + std::to_string(samples_) + ", \"fingerprint\": \"" + digest +
           "\", \"sequence_length\": " + std::to_string(length_) + ", \"tokens\": " + std::to_string(data_->tokens()) +
           (packed ? ", \"required\": [\"document_ids\", \"position_ids\"]}" : "}");
  }

  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    for (const std::int64_t sample : samples) check_sample(sample);
    kind_ == Samples::kPacked ? read_rows(samples, out) : read_pieces(samples, out);
  }

 private:
  using Place = capstan::indexed::Documents::Place;

  /// What the parameter "documents" says, or else what the files beside the tokens do.
  Samples kind_of_samples(const std::string& first) const {
    const bool masked = data_->has_loss_masks();
    if (documents_ == "separate") return Samples::kSeparate;
    if (documents_ != "joined" && data_->rows() > 0) return Samples::kPacked;
    if (documents_ == "packed") {
      throw sdk::Error("'" + first +
                       "' has no .rows file beside it that says which documents share a row. Make it with 'capstan "
                       "data chat --pack LENGTH', or take \"documents\": \"separate\".");
    }
    if (documents_ == "auto") return masked ? Samples::kSeparate : Samples::kJoined;
    if (masked) {
      throw sdk::Error("'" + first +
                       "' has a loss mask, and a sample of joined documents may have no token that the loss counts. "
                       "Set capstan.data.dataset to {\"type\": \"indexed\", \"params\": {\"documents\": "
                       "\"separate\"}}, or remove the .loss file.");
    }
    return Samples::kJoined;
  }

  /// A sample is a row, as long as it was packed for.
  void fit_rows(const std::string& first) {
    const std::int64_t row = data_->row_length();
    if (length_ > 0 && row > length_) {
      throw sdk::Error("'" + first + "' is packed into rows of " + std::to_string(row) + " tokens, and a sample has " +
                       std::to_string(length_) + ". Give --seq " + std::to_string(row) +
                       " where the model has as many positions, or pack again with --pack " + std::to_string(length_) +
                       ".");
    }
    length_ = row;
  }

  void find_usable() {
    const bool packed = kind_ == Samples::kPacked;
    for (std::int64_t i = 0; i < (packed ? data_->rows() : data_->documents()); ++i) {
      if (packed ? row_has_label(i) : has_label(data_->document(i), length_ + 1)) usable_.push_back(i);
    }
  }

  std::string too_short() const {
    return "holds " + std::to_string(data_->tokens()) + " tokens; a sequence of " + std::to_string(length_) +
           " needs " + std::to_string(length_) + " + 1. Give more data or a shorter sequence.";
  }
  std::string none_usable() const {
    return data_->has_loss_masks() ? "none of its documents has a token behind its first that the loss counts."
                                   : "none of its documents has two tokens.";
  }

  /// Whether the loss counts a token behind the first of those that a sample has room for.
  bool has_label(const Place& document, std::int64_t room) const {
    for (std::int64_t i = 1; i < std::min(document.size, room); ++i) {
      if (data_->counts(document.begin + i)) return true;
    }
    return false;
  }
  bool row_has_label(std::int64_t row) const {
    const auto [begin, end] = data_->row(row);
    for (std::int64_t document = begin; document < end; ++document) {
      if (has_label(data_->document(document), length_)) return true;
    }
    return false;
  }

  void check_sample(std::int64_t sample) const {
    if (sample >= 0 && sample < samples_) return;
    throw sdk::Error("sample " + std::to_string(sample) + " was asked for, and there are " + std::to_string(samples_) +
                     ".");
  }

  Place place_of(std::int64_t sample) const {
    if (kind_ == Samples::kJoined) return {sample * length_, length_ + 1};
    const Place place = data_->document(usable_[static_cast<std::size_t>(sample)]);
    return {place.begin, std::min(place.size, length_ + 1)};
  }

  /// The token at `place`, or what a loss does not count.
  std::int64_t label(std::int64_t place, std::int64_t token) const { return data_->counts(place) ? token : kNoLabel; }

  /// Samples of joined or of separate documents: inputs without the last token, labels without the first.
  void read_pieces(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    const NewTensor<std::int64_t> inputs(rows, length_), labels(rows, length_);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(length_) + 1);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto place = place_of(samples[static_cast<std::size_t>(row)]);
      data_->read(place.begin, place.size, vocabulary_, tokens.data());
      std::int64_t *input = inputs.row(row), *labelled = labels.row(row);
      for (std::int64_t i = 0; i + 1 < place.size; ++i) {
        input[i] = tokens[static_cast<std::size_t>(i)];
        labelled[i] = label(place.begin + i + 1, tokens[static_cast<std::size_t>(i) + 1]);
      }
      std::fill(input + place.size - 1, input + length_, 0);
      std::fill(labelled + place.size - 1, labelled + length_, kNoLabel);
    }
    out.set_tensor("input_ids", inputs.handle());
    out.set_tensor("labels", labels.handle());
  }

  /// Samples of packed documents: all tokens are inputs, and no label leads from a document into the next.
  void read_rows(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    const NewTensor<std::int64_t> inputs(rows, length_), labels(rows, length_), positions(rows, length_);
    const NewTensor<std::int32_t> documents(rows, length_);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t *input = inputs.row(row), *labelled = labels.row(row), *position = positions.row(row);
      std::int32_t* id = documents.row(row);
      const auto [begin, end] = data_->row(usable_[static_cast<std::size_t>(samples[static_cast<std::size_t>(row)])]);
      std::int64_t used = 0;
      for (std::int64_t document = begin; document < end; ++document) {
        const Place place = data_->document(document);
        data_->read(place.begin, place.size, vocabulary_, input + used);
        for (std::int64_t i = 0; i < place.size; ++i) {
          const bool last = i + 1 == place.size;
          labelled[used + i] = last ? kNoLabel : label(place.begin + i + 1, input[used + i + 1]);
        }
        std::iota(position + used, position + used + place.size, 0);
        std::fill_n(id + used, place.size, static_cast<std::int32_t>(document - begin));
        used += place.size;
      }
      std::fill(input + used, input + length_, 0);
      std::fill(labelled + used, labelled + length_, kNoLabel);
      std::iota(position + used, position + length_, 0);
      std::fill(id + used, id + length_, kNoDocument);
    }
    out.set_tensor("input_ids", inputs.handle());
    out.set_tensor("labels", labels.handle());
    out.set_tensor("document_ids", documents.handle());
    out.set_tensor("position_ids", positions.handle());
  }

  sdk::Host host_;
  std::string documents_;  // the parameter
  Samples kind_ = Samples::kJoined;
  std::int64_t length_ = 0, vocabulary_ = 0, samples_ = 0;
  std::optional<capstan::indexed::Documents> data_;
  std::vector<std::int64_t> usable_;  // documents or rows with a label
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::dataset<Indexed, "indexed">)
