#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace capstan {

/// What a step's time is made of: each term times a rate that is the machine's.
enum class CostTerm : std::size_t {
  kMicroBatches,   // of a step: what each costs whatever its size
  kSamples,        // of a step on one device
  kExposedBytes,   // that a rank sends while nothing else goes on
  kHiddenBytes,    // that it sends while backward runs
  kCalls,          // of collectives
  kUpdatedValues,  // elements that a rank's optimizer updates
};
inline constexpr std::size_t kCostTerms = 6;
using CostTerms = std::array<double, kCostTerms>;

/// The time of a step as a sum of terms whose rates, none of them negative, are fitted to what was measured: least
/// squares of the relative errors, drawn towards a first guess by what few measurements leave open. The guess counts by
/// its proportions alone once something was measured.
class CostModel {
 public:
  explicit CostModel(const CostTerms& guess) : guess_(guess), rates_(guess) {}

  void add(const CostTerms& terms, double seconds);
  std::size_t measured() const { return measured_.size(); }
  /// Seconds of a step.
  double predict(const CostTerms& terms) const;
  const CostTerms& rates() const { return rates_; }  // seconds for one of each

 private:
  struct Measured {
    CostTerms terms;
    double seconds;
  };
  void fit();

  CostTerms guess_, rates_;
  std::vector<Measured> measured_;
};

/// The bytes and calls of a step, and what else its terms follow from.
struct StepFacts {
  double micro_batches = 1, samples = 1, bytes = 0, calls = 0, updated = 0;
  bool overlaps = false;
};
CostTerms cost_terms(const StepFacts& facts);

}  // namespace capstan
