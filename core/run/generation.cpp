#include "core/run/generation.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/model/decoding.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kNoToken = -1;
constexpr const char* kRows = "decoded_ids";

/// One prompt, and the tokens behind it.
struct Sequence {
  const std::vector<std::int64_t>& prompt;
  std::uint64_t number;
  std::vector<std::int64_t> tokens = {};
  bool ended = false;

  std::int64_t last() const { return tokens.back(); }
  /// Of the next token.
  std::uint32_t position() const { return static_cast<std::uint32_t>(prompt.size() + tokens.size()); }
};

at::Tensor as_tensor(const std::vector<std::int64_t>& numbers) { return at::tensor(numbers, host_options(at::kLong)); }

/// Sequences that grow together.
class Generation {
 public:
  Generation(Engine& engine, const std::vector<Sequence>& sequences, const GenerationLimits& limits,
             const TokenSampling& sampling)
      : engine_(engine),
        sequences_(sequences),
        limits_(limits),
        sampling_(sampling),
        decoding_(engine.model().decode_functions(), rows(), longest() + limits.most_tokens - 1) {
    for (Sequence& sequence : sequences_) sequence.ended = limits.most_tokens <= 0;
  }

  /// Prompts one by one, as they would be alone, then a token of each sequence at a time.
  std::vector<Sequence> run(const std::function<void(std::int64_t)>& on_token) {
    for (std::size_t row = 0; row < sequences_.size(); ++row) {
      if (!sequences_[row].ended) take(growing({row}), sequences_[row].prompt, on_token);
    }
    for (;;) {
      std::vector<std::size_t> rows;
      std::vector<std::int64_t> last;
      for (std::size_t row = 0; row < sequences_.size(); ++row) {
        if (sequences_[row].ended) continue;
        rows.push_back(row);
        last.push_back(sequences_[row].last());
      }
      if (rows.empty()) return std::move(sequences_);
      take(growing(rows), last, on_token);
    }
  }

 private:
  std::int64_t rows() const { return static_cast<std::int64_t>(sequences_.size()); }
  std::int64_t longest() const {
    std::size_t tokens = 0;
    for (const Sequence& sequence : sequences_) tokens = std::max(tokens, sequence.prompt.size());
    return static_cast<std::int64_t>(tokens);
  }

  std::vector<Sequence*> growing(const std::vector<std::size_t>& rows) {
    std::vector<Sequence*> growing;
    for (const std::size_t row : rows) growing.push_back(&sequences_[row]);
    return growing;
  }

  /// Takes in `ids`, as many of each sequence, and chooses the next token of each.
  void take(const std::vector<Sequence*>& growing, const std::vector<std::int64_t>& ids,
            const std::function<void(std::int64_t)>& on_token) {
    const at::Tensor logits = logits_of(growing, ids);
    for (std::size_t i = 0; i < growing.size(); ++i) {
      choose(*growing[i], growing.size() == 1 ? logits.squeeze(0) : logits.select(0, static_cast<std::int64_t>(i)));
      if (on_token) on_token(growing[i]->last());
    }
  }

  at::Tensor logits_of(const std::vector<Sequence*>& growing, const std::vector<std::int64_t>& ids) {
    const auto count = static_cast<std::int64_t>(growing.size());
    const at::Tensor given = as_tensor(ids).view({count, -1});
    Batch batch;
    // For the model's check of a batch, which may want labels.
    batch.tensors = {{"input_ids", given}, {"labels", given}, {kRows, given}};
    if (count < rows()) {
      at::Tensor all = at::full({rows(), given.size(1)}, kNoToken, host_options(at::kLong));
      for (std::int64_t i = 0; i < count; ++i) {
        all.select(0, growing[static_cast<std::size_t>(i)] - sequences_.data()).copy_(given.select(0, i));
      }
      batch.tensors[kRows] = all;
    }
    at::Tensor logits;
    engine_.pass(PassKind::kEvaluation, batch,
                 [&] { logits = decoding_.logits_of_rows(batch.tensors.at(kRows), count).to(at::kCPU, at::kFloat); });
    return logits;
  }

  void choose(Sequence& sequence, const at::Tensor& logits) {
    const std::uint32_t position = sequence.position();
    if (!std::isfinite(logits.max().item<float>())) {
      throw LogitsFault("the logits of token " + std::to_string(position) +
                        " are not numbers. The weights are not, or overflow in the precision of the configuration.");
    }
    const std::int64_t token = chosen_token(logits, sampling_, sequence.number, position);
    sequence.tokens.push_back(token);
    sequence.ended = static_cast<std::int64_t>(sequence.tokens.size()) >= limits_.most_tokens ||
                     std::find(limits_.stop.begin(), limits_.stop.end(), token) != limits_.stop.end();
  }

  Engine& engine_;
  std::vector<Sequence> sequences_;
  const GenerationLimits& limits_;
  const TokenSampling& sampling_;
  Decoding decoding_;
};

}  // namespace

std::vector<std::int64_t> generate_tokens(Engine& engine, const std::vector<std::int64_t>& prompt,
                                          const GenerationLimits& limits, const TokenSampling& sampling,
                                          std::uint64_t sequence, const std::function<void(std::int64_t)>& on_token) {
  return Generation(engine, {{prompt, sequence}}, limits, sampling).run(on_token).front().tokens;
}

std::vector<std::vector<std::int64_t>> generate_batch(Engine& engine,
                                                      const std::vector<std::vector<std::int64_t>>& prompts,
                                                      const GenerationLimits& limits, const TokenSampling& sampling,
                                                      std::uint64_t first_sequence) {
  std::vector<std::vector<std::int64_t>> answers;
  if (prompts.size() < 2 || !Decoding::takes_short_rows(engine.model())) {
    for (const std::vector<std::int64_t>& prompt : prompts) {
      answers.push_back(generate_tokens(engine, prompt, limits, sampling, first_sequence++));
    }
    return answers;
  }
  std::vector<Sequence> sequences;
  for (const std::vector<std::int64_t>& prompt : prompts) sequences.push_back({prompt, first_sequence++});
  for (Sequence& sequence : Generation(engine, sequences, limits, sampling).run({})) {
    answers.push_back(std::move(sequence.tokens));
  }
  return answers;
}

}  // namespace capstan
