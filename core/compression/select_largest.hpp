#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"

namespace capstan {

/// A rank's part of a set of values of which the largest are wanted.
struct SelectionPart {
  const float* values = nullptr;
  std::int64_t numel = 0;
  std::uint32_t set = 0;
  std::uint8_t* mask = nullptr;  // becomes 1 for the largest of the set, else 0; null: not wanted
};

/// The k[s]-th largest value of each set s, exact; infinity for k[s] = 0. Every rank has as many parts, in the same
/// order; among equal values those of earlier parts, ranks and elements are taken first. `ranks` null: this process has
/// all values. Throws RuntimeFault for a k that the set has not.
std::vector<float> select_largest(const std::vector<SelectionPart>& parts, const std::vector<std::uint64_t>& k,
                                  Communicator* ranks, const std::string& step);

}  // namespace capstan
