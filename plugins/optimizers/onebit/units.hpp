#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "capstan/sdk/parallel.hpp"

namespace capstan::optimizers {

constexpr std::size_t kUnitElements = 16384;  // what one thread takes at once: whole bytes of signs, whole vectors

inline std::size_t host_units_of(std::size_t count) { return (count + kUnitElements - 1) / kUnitElements; }

/// body(begin, end) for parts that cover [0, count), on LibTorch's threads where there is enough to do.
template <class Body>
void for_units(std::size_t count, const Body& body) {
  const auto units = static_cast<std::int64_t>(host_units_of(count));
  sdk::parallel_for(0, units, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::size_t from = static_cast<std::size_t>(unit) * kUnitElements;
      body(from, std::min(from + kUnitElements, count));
    }
  });
}

/// The sum of what body(begin, end) returns, always added in the same order.
template <class Body>
double sum_units(std::size_t count, const Body& body) {
  std::vector<double> sums(host_units_of(count));
  for_units(count, [&](std::size_t begin, std::size_t end) { sums[begin / kUnitElements] = body(begin, end); });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace capstan::optimizers
