#pragma once

#include <cstdint>

/// A number from 0 to below 1 that follows from its arguments alone, so that a run that is resumed draws the same
/// (splitmix64 of a counter).
inline double template_plugin_draw(std::uint64_t seed, std::uint64_t batch, std::uint64_t position) {
  std::uint64_t z = (seed * 0x9e3779b97f4a7c15u + batch) * 0xbf58476d1ce4e5b9u + position + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}
