#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace capstan {

/// How much is fetched ahead and kept. All in elements.
struct ResidencyLimits {
  std::int64_t max_live = 1'000'000'000;            // with so many in memory nothing more is fetched ahead
  std::int64_t max_reuse_distance = 1'000'000'000;  // a parameter that is used again sooner is kept
  std::int64_t prefetch = 50'000'000;               // fetched so far ahead of its use; 0: never ahead
};

/// In which order a pass (forward and backward of a micro-batch, or the forward of an evaluation) uses units of
/// parameters. The first pass is recorded; the others follow the record, and it tells what will be used soon. A pass
/// may leave units out, as one does in which layers are dropped. One that uses others is merged into the record, or,
/// where it uses them in another order, takes its place; so does one that leaves the same units out kSettled times in a
/// row. Passes follow each other in a circle: after the last use comes the first.
class UseTrace {
 public:
  static constexpr int kSettled = 8;

  UseTrace(std::vector<std::int64_t> numels, ResidencyLimits limits);

  void begin();
  /// A unit is used. Returns the position of this use in the record, 0 where the pass does not follow it.
  std::size_t use(std::size_t unit);
  /// The positions in the record, first and one behind the last, that the last use() has left out.
  std::pair<std::size_t, std::size_t> left_out() const { return left_out_; }
  std::size_t unit_at(std::size_t position) const { return record_[position]; }
  /// The pass is over. One that ends by an exception is just not ended.
  void end();

  /// False in a pass that is recorded, and from where it used what the record has not.
  bool follows() const { return follows_; }
  /// True when the pass that ended last has taken the place of a record of another order.
  bool strayed() const { return strayed_; }
  /// Whether the unit used at `position` is used again before max_reuse_distance elements are.
  bool is_kept(std::size_t position) const;
  /// The units to fetch now, in the order of use: those of the next `prefetch` elements that are away, once they are
  /// worth a call. `live`: elements that are in memory or being fetched.
  std::vector<std::size_t> ahead(std::int64_t live, const std::function<bool(std::size_t)>& is_remote) const;

 private:
  bool is_settled();
  void measure();

  std::vector<std::int64_t> numels_;
  ResidencyLimits limits_;
  std::vector<std::size_t> record_, current_, previous_;  // previous_: the last pass that left units out
  std::vector<std::int64_t> distance_;  // for each position in the record: elements until the same unit is used again
  std::size_t position_ = 0;
  std::pair<std::size_t, std::size_t> left_out_;
  int repeated_ = 0;  // how often previous_ has come in a row
  bool follows_ = false, strayed_ = false;
  mutable std::vector<std::size_t> seen_;  // a unit: the number of the last search that met it
  mutable std::size_t search_ = 0;
};

}  // namespace capstan
