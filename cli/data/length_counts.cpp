#include "cli/data/length_counts.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace capstan::cli {

void LengthCounts::add(std::int64_t length) {
  ++counts_[length];
  ++documents_;
  total_ += length;
}

std::int64_t LengthCounts::at(std::int64_t place) const {
  std::int64_t before = 0;
  for (const auto& [length, documents] : counts_) {
    before += documents;
    if (before >= place) return length;
  }
  return greatest();
}

double LengthCounts::median() const {
  return static_cast<double>(at((documents_ + 1) / 2) + at(documents_ / 2 + 1)) / 2;
}

std::int64_t LengthCounts::quantile(double share) const {
  return at(static_cast<std::int64_t>(std::ceil(share * static_cast<double>(documents_))));
}

std::vector<LengthCounts::Bar> LengthCounts::histogram() const {
  std::vector<Bar> bars;
  for (const auto& [length, documents] : counts_) {
    while (bars.empty() || bars.back().greatest < length) {
      // A gap between two lengths has bars as well.
      const auto first = static_cast<std::uint64_t>(bars.empty() ? length : bars.back().greatest + 1);
      const auto least = static_cast<std::int64_t>(std::bit_floor(first));
      bars.push_back({least, least == 0 ? 0 : 2 * least - 1, 0});
    }
    bars.back().documents += documents;
  }
  return bars;
}

std::int64_t LengthCounts::missing_to(std::int64_t length) const {
  std::int64_t sum = 0;
  for (const auto& [one, documents] : counts_) sum += std::max<std::int64_t>(length - one, 0) * documents;
  return sum;
}

std::int64_t LengthCounts::beyond(std::int64_t length) const {
  std::int64_t sum = 0;
  for (const auto& [one, documents] : counts_) sum += std::max<std::int64_t>(one - length, 0) * documents;
  return sum;
}

}  // namespace capstan::cli
