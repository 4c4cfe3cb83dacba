#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/model/batch.hpp"
#include "core/registry/registry.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A component of kind "metric", started.
class SampleMetric {
 public:
  /// `source`: what the data set says of itself, with "vocabulary" where it is known. Throws PluginError with the
  /// component's text.
  SampleMetric(Component component, const Json& source);

  const std::string& type() const { return component_.manifest().type; }
  /// 0: one number a sample; else so many, summed over all samples.
  std::uint64_t width() const { return width_; }
  /// Metrics with a width whose sums it needs before measure().
  const std::vector<std::string>& needs() const { return needs_; }

  /// Throw PluginError with the component's text.
  void take_totals(const std::string& metric, std::span<const std::int64_t> values);
  /// `count` samples, the rows of `samples`. Writes a number each, or adds to width() numbers. [any thread]
  void measure(Batch& samples, std::size_t count, std::int64_t* out) const;

 private:
  Component component_;
  std::string where_;  // "metric 'vocab_rarity'"
  std::uint64_t width_ = 0;
  std::vector<std::string> needs_;
};

}  // namespace capstan
