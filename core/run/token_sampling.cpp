#include "core/run/token_sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "capstan/sdk/random.hpp"

namespace capstan {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

/// exp(score) as a part of their sum.
std::vector<double> softmax_of(const std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> parts;
  for (const double score : scores) parts.push_back(std::exp(score - largest));
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (double& part : parts) part /= sum;
  return parts;
}

void keep_top_k(std::vector<double>& scores, std::int64_t k) {
  if (k <= 0 || static_cast<std::size_t>(k) >= scores.size()) return;
  std::vector<double> sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const double least = sorted[static_cast<std::size_t>(k - 1)];
  std::replace_if(
      scores.begin(), scores.end(), [&](double score) { return score < least; }, kExcluded);
}

/// Leaves out the least likely tokens whose sum is at most 1 - p, but never the likeliest one.
void keep_top_p(std::vector<double>& scores, double p) {
  if (p >= 1) return;
  const std::vector<double> probabilities = softmax_of(scores);
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return probabilities[a] < probabilities[b]; });
  order.pop_back();
  double sum = 0;
  for (const std::size_t token : order) {
    sum += probabilities[token];
    if (sum > 1 - p) return;
    scores[token] = kExcluded;
  }
}

}  // namespace

std::vector<double> token_probabilities(const at::Tensor& logits, const TokenSampling& sampling) {
  const at::Tensor values = logits.to(at::kDouble).contiguous();
  const double* const first = values.const_data_ptr<double>();
  std::vector<double> scores(first, first + values.numel());
  // Relative to the largest one, no score overflows at a temperature near 0.
  const double largest = *std::max_element(scores.begin(), scores.end());
  for (double& score : scores) score = (score - largest) / sampling.temperature;
  keep_top_k(scores, sampling.top_k);
  keep_top_p(scores, sampling.top_p);
  return softmax_of(scores);
}

std::int64_t chosen_token(const at::Tensor& logits, const TokenSampling& sampling, std::uint64_t sequence,
                          std::uint32_t position) {
  if (sampling.temperature == 0) return logits.argmax().item<std::int64_t>();
  const std::vector<double> probabilities = token_probabilities(logits, sampling);
  double rest = sdk::RandomStream(sampling.seed, "generate").uniform(sequence, position, 0);
  std::int64_t last = 0;
  for (std::size_t token = 0; token < probabilities.size(); ++token) {
    if (probabilities[token] == 0) continue;
    last = static_cast<std::int64_t>(token);
    rest -= probabilities[token];
    if (rest < 0) break;
  }
  return last;
}

}  // namespace capstan
