#include <cmath>
#include <numeric>
#include <optional>

#include "capstan/sdk/metric.hpp"
#include "capstan/sdk/tensor.hpp"

/// The metrics of the Data Efficiency library (Li et al. 2022, arXiv 2212.03597, section 3.1), with the formulas of its
/// analysis script: int(sum of -ln(f_t / sum of f)), where a token that never occurs counts as if it did once.
namespace {

namespace sdk = capstan::sdk;

constexpr const char* kFrequencies = "total_vocab_freq";
constexpr std::int64_t kIgnoredLabel = -100;

/// The rows of a tensor of whole numbers.
struct Rows {
  const std::int64_t* values;
  std::size_t rows, columns;
  std::span<const std::int64_t> row(std::size_t i) const { return {values + i * columns, columns}; }
};

Rows rows_of(const sdk::Batch& batch, const char* name, std::size_t count) {
  const capstan_tensor tensor = batch.tensor(name);
  const auto shape = sdk::shape_of(tensor);
  const sdk::Values values = sdk::values_of(tensor);
  if (shape.size() != 2 || values.dtype != sdk::Dtype::kInt64 || static_cast<std::size_t>(shape[0]) != count) {
    throw sdk::Error(std::string(name) + ": must be int64 [samples, tokens].");
  }
  return {static_cast<const std::int64_t*>(values.data), count, static_cast<std::size_t>(shape[1])};
}

std::optional<std::int64_t> optional_integer(const sdk::Params& params, const char* name) {
  return params.has(name) ? std::optional(params.integer(name)) : std::nullopt;
}

/// How many tokens of each sample are not padding.
class Lengths {
 public:
  explicit Lengths(const sdk::Params& params) : padding_(optional_integer(params, "padding")) {}

  void measure(const sdk::Batch& batch, std::size_t count, std::int64_t* out) const {
    const Rows rows = rows_of(batch, padding_ ? "input_ids" : "labels", count);
    const std::int64_t none = padding_.value_or(kIgnoredLabel);
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = static_cast<std::int64_t>(rows.columns);
      for (const std::int64_t token : rows.row(i)) out[i] -= token == none ? 1 : 0;
    }
  }

 private:
  std::optional<std::int64_t> padding_;
};

class SequenceLength {
 public:
  SequenceLength(const sdk::Host&, const sdk::Params& params) : lengths_(params) {}
  sdk::MetricPlan start(const sdk::Document&) { return {}; }
  void measure(const sdk::Batch& batch, std::size_t count, std::int64_t* out) const {
    lengths_.measure(batch, count, out);
  }

 private:
  Lengths lengths_;
};

class TotalVocabularyFrequency {
 public:
  TotalVocabularyFrequency(const sdk::Host&, const sdk::Params& params)
      : vocabulary_(optional_integer(params, "vocabulary")) {}

  sdk::MetricPlan start(const sdk::Document& source) {
    if (!vocabulary_ && source.has("vocabulary")) vocabulary_ = source.integer("vocabulary");
    if (!vocabulary_) {
      throw sdk::Error(
          "how many tokens there are is not known. Name a model, with --model, or give the parameter 'vocabulary'.");
    }
    return {static_cast<std::uint64_t>(*vocabulary_), {}};
  }
  void measure(const sdk::Batch& batch, std::size_t count, std::int64_t* out) const {
    const Rows rows = rows_of(batch, "input_ids", count);
    for (std::size_t i = 0; i < count; ++i) {
      for (const std::int64_t token : rows.row(i)) {
        if (token < 0 || token >= *vocabulary_) {
          throw sdk::Error("token " + std::to_string(token) + " is outside of the vocabulary, 0 to " +
                           std::to_string(*vocabulary_ - 1) + ". Raise the parameter 'vocabulary'.");
        }
        ++out[token];
      }
    }
  }

 private:
  std::optional<std::int64_t> vocabulary_;
};

/// -ln of each token's share of the data.
class Rarity {
 public:
  Rarity(const sdk::Host&, const sdk::Params&) {}

  sdk::MetricPlan start(const sdk::Document&) { return {0, {kFrequencies}}; }
  void totals(std::string_view, std::span<const std::int64_t> frequencies) {
    const auto counted = [](std::int64_t f) { return static_cast<double>(f == 0 ? 1 : f); };
    double sum = 0;
    for (const std::int64_t f : frequencies) sum += counted(f);
    rarities_.clear();
    for (const std::int64_t f : frequencies) rarities_.push_back(-std::log(counted(f) / sum));
  }
  void measure(const sdk::Batch& batch, std::size_t count, std::int64_t* out) const {
    const Rows rows = rows_of(batch, "input_ids", count);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (const std::int64_t token : rows.row(i)) sum += of(token);
      out[i] = static_cast<std::int64_t>(sum);
    }
  }
  double largest() const {
    return std::accumulate(rarities_.begin(), rarities_.end(), 0.0, [](double a, double b) { return std::max(a, b); });
  }

 private:
  double of(std::int64_t token) const {
    if (token >= 0 && static_cast<std::size_t>(token) < rarities_.size())
      return rarities_[static_cast<std::size_t>(token)];
    throw sdk::Error("token " + std::to_string(token) + " is outside of the " + std::to_string(rarities_.size()) +
                     " tokens that " + kFrequencies + " has counted.");
  }

  std::vector<double> rarities_;
};

/// The length times a power of ten that no rarity reaches, plus the rarity: 10^(ceil(log10(T * largest rarity)) + 1).
class LengthAndRarity {
 public:
  LengthAndRarity(const sdk::Host& host, const sdk::Params& params) : lengths_(params), rarity_(host, params) {}

  sdk::MetricPlan start(const sdk::Document& source) {
    if (!source.has("sequence_length")) throw sdk::Error("the data set does not say how long its samples are.");
    tokens_ = source.integer("sequence_length");
    return rarity_.start(source);
  }
  void totals(std::string_view metric, std::span<const std::int64_t> frequencies) {
    rarity_.totals(metric, frequencies);
    const double most = static_cast<double>(tokens_) * rarity_.largest();
    const double digits = most > 0 ? std::ceil(std::log10(most)) + 1 : 1;
    if (digits > 17 || static_cast<double>(tokens_) * std::pow(10.0, digits) > 9e18) {
      throw sdk::Error("samples of " + std::to_string(tokens_) + " tokens are too long for one number of 64 bits.");
    }
    factor_ = static_cast<std::int64_t>(std::llround(std::pow(10.0, digits)));
  }
  void measure(const sdk::Batch& batch, std::size_t count, std::int64_t* out) const {
    std::vector<std::int64_t> lengths(count);
    lengths_.measure(batch, count, lengths.data());
    rarity_.measure(batch, count, out);
    for (std::size_t i = 0; i < count; ++i) out[i] += lengths[i] * factor_;
  }

 private:
  Lengths lengths_;
  Rarity rarity_;
  std::int64_t tokens_ = 0, factor_ = 1;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::metric<SequenceLength, "seqlen">,
               &capstan::sdk::metric<TotalVocabularyFrequency, "total_vocab_freq">,
               &capstan::sdk::metric<Rarity, "vocab_rarity">,
               &capstan::sdk::metric<LengthAndRarity, "seqlen_vocab_rarity">)
