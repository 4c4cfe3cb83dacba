#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace capstan {

/// How much is fetched ahead and kept. All in elements.
struct ResidencyLimits {
  std::int64_t max_live = 1'000'000'000;            // with so many in memory nothing more is fetched ahead
  std::int64_t max_reuse_distance = 1'000'000'000;  // a parameter that is used again sooner is kept
  std::int64_t prefetch = 50'000'000;               // fetched so far ahead of its use; 0: never ahead
};

/// In which order a pass (forward and backward of a micro-batch, or the forward of an evaluation) uses units of
/// parameters. The first pass is recorded; the others follow it as long as they use the same units in the same order,
/// and tell what will be used soon. A pass that goes another way is recorded anew. Passes follow each other in a
/// circle: after the last use comes the first.
class UseTrace {
 public:
  UseTrace(std::vector<std::int64_t> numels, ResidencyLimits limits);

  void begin();
  /// A unit is used. Returns the position of this use.
  std::size_t use(std::size_t unit);
  /// The pass is over. One that ends by an exception is just not ended.
  void end();

  /// False in a pass that is recorded, and from where it went another way than the record.
  bool follows() const { return follows_; }
  /// True when this pass left the record.
  bool strayed() const { return strayed_; }
  /// Whether the unit used at `position` is used again before max_reuse_distance elements are.
  bool is_kept(std::size_t position) const;
  /// The units to fetch now, in the order of use: those of the next `prefetch` elements that are away, once they are
  /// worth a call. `live`: elements that are in memory or being fetched.
  std::vector<std::size_t> ahead(std::int64_t live, const std::function<bool(std::size_t)>& is_away) const;

 private:
  void measure();

  std::vector<std::int64_t> numels_;
  ResidencyLimits limits_;
  std::vector<std::size_t> record_, current_;
  std::vector<std::int64_t> distance_;  // for each position in the record: elements until the same unit is used again
  std::size_t position_ = 0;
  bool follows_ = false, strayed_ = false;
  mutable std::vector<std::size_t> seen_;  // a unit: the number of the last search that met it
  mutable std::size_t search_ = 0;
};

}  // namespace capstan
