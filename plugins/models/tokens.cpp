#include "tokens.hpp"

#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <string>

namespace capstan::models {
namespace {

constexpr std::int64_t kIgnoredLabel = -100;

const at::Tensor& matrix(const sdk::BatchView& batch, const std::string& name) {
  const at::Tensor& tensor = batch.tensor(name);
  if (tensor.dim() != 2 || tensor.scalar_type() != at::kLong || tensor.numel() == 0) {
    throw sdk::Error(name + ": got a " + c10::toString(tensor.scalar_type()) + " tensor of shape " +
                     c10::str(tensor.sizes()) + ". It must be int64 [batch, time] and not empty.");
  }
  return tensor;
}

void check_range(const at::Tensor& ids, const std::string& name, std::int64_t vocabulary, std::int64_t also_allowed,
                 const TokenBounds& bounds) {
  if (!ids.is_cpu()) return;  // the program put them on the device; to look there would wait for it
  const auto [low, high] = ids.aminmax();
  const auto smallest = low.item<std::int64_t>();
  const auto largest = high.item<std::int64_t>();
  if (largest < vocabulary && (smallest >= 0 || smallest == also_allowed)) return;
  throw sdk::Error(name + ": holds id " + std::to_string(largest >= vocabulary ? largest : smallest) +
                   ", this model's vocabulary is 0 to " + std::to_string(vocabulary - 1) +
                   ". Raise the model's parameter '" + bounds.vocabulary + "', or use data of that vocabulary.");
}

}  // namespace

at::Tensor read_inputs(const sdk::BatchView& batch, std::int64_t sequence_length, const TokenBounds& bounds) {
  at::Tensor inputs = matrix(batch, "input_ids");
  if (const auto cut = batch.number("curriculum_seqlen")) {
    inputs = inputs.narrow(1, 0, std::clamp<std::int64_t>(static_cast<std::int64_t>(*cut), 1, inputs.size(1)));
  }
  if (inputs.size(1) > sequence_length) {
    throw sdk::Error("input_ids: " + std::to_string(inputs.size(1)) + " positions, this model has " +
                     std::to_string(sequence_length) + ". Shorten the sequences, or raise the model's parameter '" +
                     bounds.sequence + "'.");
  }
  return inputs;
}

Tokens read_tokens(const sdk::BatchView& batch, std::int64_t sequence_length, const TokenBounds& bounds) {
  const at::Tensor &inputs = matrix(batch, "input_ids"), &labels = matrix(batch, "labels");
  if (inputs.sizes() != labels.sizes()) {
    throw sdk::Error("labels: shape " + c10::str(labels.sizes()) + " differs from that of input_ids, " +
                     c10::str(inputs.sizes()) + ". Every position needs one label.");
  }
  const at::Tensor read = read_inputs(batch, sequence_length, bounds);
  return {read, labels.narrow(1, 0, read.size(1))};
}

void check_tokens(const sdk::BatchView& batch, std::int64_t sequence_length, std::int64_t vocabulary,
                  const TokenBounds& bounds) {
  if (batch.find("labels") == nullptr) {
    check_range(read_inputs(batch, sequence_length, bounds), "input_ids", vocabulary, 0, bounds);
    return;
  }
  const Tokens tokens = read_tokens(batch, sequence_length, bounds);
  check_range(tokens.inputs, "input_ids", vocabulary, 0, bounds);
  check_range(tokens.labels, "labels", vocabulary, kIgnoredLabel, bounds);
}

at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}).to(at::kFloat), labels.reshape(-1), {},
                                at::Reduction::Mean, kIgnoredLabel);
}

}  // namespace capstan::models
