#include "core/tuning/cost_model.hpp"

#include <algorithm>
#include <cmath>

namespace capstan {
namespace {

/// How much a rate's relative distance from its guess counts, beside the relative error of one measurement.
constexpr double kTrustInGuess = 0.003;
constexpr int kSweeps = 400;

}  // namespace

double CostModel::predict(const CostTerms& terms) const {
  double seconds = 0;
  for (std::size_t i = 0; i < kCostTerms; ++i) seconds += terms[i] * rates_[i];
  return seconds;
}

void CostModel::add(const CostTerms& terms, double seconds) {
  if (!(seconds > 0)) return;
  measured_.push_back({terms, seconds});
  fit();
}

void CostModel::fit() {
  // The scale of the guess that suits the measurements best.
  double ratio = 0;
  for (const Measured& one : measured_) {
    double guessed = 0;
    for (std::size_t i = 0; i < kCostTerms; ++i) guessed += one.terms[i] * guess_[i];
    if (guessed > 0) ratio += std::log(one.seconds / guessed);
  }
  const double scale = std::exp(ratio / static_cast<double>(measured_.size()));
  // Unknowns are the rates as multiples of their guesses, so that one ridge suits all.
  std::array<CostTerms, kCostTerms> square{};
  CostTerms right{}, factor{};
  for (std::size_t i = 0; i < kCostTerms; ++i) {
    square[i][i] = kTrustInGuess;
    right[i] = kTrustInGuess;
    factor[i] = 1;
  }
  for (const Measured& one : measured_) {
    CostTerms row{};
    for (std::size_t i = 0; i < kCostTerms; ++i) row[i] = one.terms[i] * guess_[i] * scale / one.seconds;
    for (std::size_t i = 0; i < kCostTerms; ++i) {
      right[i] += row[i];
      for (std::size_t j = 0; j < kCostTerms; ++j) square[i][j] += row[i] * row[j];
    }
  }
  // Coordinate descent, which keeps every factor from below zero.
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t i = 0; i < kCostTerms; ++i) {
      double rest = right[i];
      for (std::size_t j = 0; j < kCostTerms; ++j) {
        if (j != i) rest -= square[i][j] * factor[j];
      }
      factor[i] = std::max(0.0, rest / square[i][i]);
    }
  }
  for (std::size_t i = 0; i < kCostTerms; ++i) rates_[i] = factor[i] * guess_[i] * scale;
}

CostTerms cost_terms(const StepFacts& facts) {
  return {facts.micro_batches, facts.samples, facts.overlaps ? 0 : facts.bytes, facts.overlaps ? facts.bytes : 0,
          facts.calls,         facts.updated};
}

}  // namespace capstan
