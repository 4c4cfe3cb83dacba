#include "core/run/generation.hpp"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/model/decoding.hpp"

namespace capstan {
namespace {

/// As one row of ids; `labels` are there because a model's check of a batch may want them.
Batch batch_of(const std::vector<std::int64_t>& tokens) {
  const at::Tensor ids = at::tensor(tokens, host_options(at::kLong)).unsqueeze(0);
  Batch batch;
  batch.tensors = {{"input_ids", ids}, {"labels", ids}};
  return batch;
}

}  // namespace

std::vector<std::int64_t> generate_tokens(Engine& engine, const std::vector<std::int64_t>& prompt,
                                          const GenerationLimits& limits, const TokenSampling& sampling,
                                          std::uint64_t sequence, const std::function<void(std::int64_t)>& on_token) {
  const auto known = static_cast<std::int64_t>(prompt.size());
  Decoding decoding(engine.model().decode_functions(), 1, known + limits.most_tokens - 1);
  std::vector<std::int64_t> tokens, next = prompt;
  while (static_cast<std::int64_t>(tokens.size()) < limits.most_tokens) {
    Batch batch = batch_of(next);
    at::Tensor logits;
    engine.pass(PassKind::kEvaluation, batch,
                [&] { logits = decoding.logits(batch.tensors.at("input_ids")).squeeze(0).to(at::kCPU, at::kFloat); });
    const auto position = static_cast<std::uint32_t>(prompt.size() + tokens.size());
    if (!std::isfinite(logits.max().item<float>())) {
      throw RuntimeFault("the logits of token " + std::to_string(position) +
                         " are not numbers. The weights are not, or overflow in the precision of the configuration.");
    }
    const std::int64_t token = chosen_token(logits, sampling, sequence, position);
    tokens.push_back(token);
    if (on_token) on_token(token);
    if (std::find(limits.stop.begin(), limits.stop.end(), token) != limits.stop.end()) break;
    next = {token};
  }
  return tokens;
}

}  // namespace capstan
