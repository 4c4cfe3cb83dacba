#pragma once

#include <cstddef>

#include "capstan/sdk/elements/everywhere.hpp"

// The order in which a device adds up: the same bits each time, whatever the device has of processors.
//
//   1. Indices are cut into units of kSumUnit. In a unit, thread t of kSumThreads adds what the indices t,
//      t + kSumThreads, ... give, in that order.
//   2. The threads' sums are folded: to each of the lower half the one half the width further is added, then to each of
//      the lower quarter, down to one.
//   3. The units' sums are added the same way, as if they were the elements of one unit of any size.

namespace capstan::optimizers {

constexpr std::size_t kSumThreads = 256, kSumUnit = 2048;

CAPSTAN_EVERYWHERE constexpr std::size_t units_of(std::size_t count) { return (count + kSumUnit - 1) / kSumUnit; }

/// The only sum of a rule.
struct Total {
  double value = 0;
  CAPSTAN_EVERYWHERE void add(const Total& other) { value += other.value; }
  CAPSTAN_EVERYWHERE void add(std::size_t, float a, float b) {
    value += static_cast<double>(a) * static_cast<double>(b);
  }
};

/// The sum of `thread` over the indices [begin, end): add(i, sum) for each.
template <class Sum, class Add>
CAPSTAN_EVERYWHERE Sum sum_of_thread(std::size_t begin, std::size_t end, std::size_t thread, const Add& add) {
  Sum sum;
  for (std::size_t i = begin + thread; i < end; i += kSumThreads) add(i, sum);
  return sum;
}

/// One step of folding the threads' sums to `width` of them.
template <class Sum>
CAPSTAN_EVERYWHERE void fold(Sum* sums, std::size_t thread, std::size_t width) {
  if (thread < width) sums[thread].add(sums[thread + width]);
}

}  // namespace capstan::optimizers
