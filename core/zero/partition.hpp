#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/config/typed/zero.hpp"

namespace capstan {

/// A range of one parameter's flattened elements.
struct Range {
  std::int64_t offset = 0, numel = 0;
};

/// Parameters that are reduced in one call. Their elements stand one after another.
struct Bucket {
  std::size_t begin = 0, end = 0;        // a range of Partition::order()
  std::int64_t first = 0, numel = 0;     // in the flat space of all parameters
  std::vector<std::int64_t> rank_first;  // rank r owns [rank_first[r], rank_first[r + 1]) of the flat space
  bool given = false;                    // its parameter's gradient is made from others: nothing is to be reduced
};

/// Which rank owns which elements.
///
/// Parameters are cut into buckets in the order in which backward gives their gradients, the last parameter first, and
/// each bucket is spread over all ranks, so that no rank waits for one owner. Cuts fall on multiples of kBlock of a
/// parameter, the unit in which norms are summed; a parameter that must stay whole is not cut.
class Partition {
 public:
  static constexpr std::int64_t kBlock = 32768;  // elements
  /// A larger bucket gains nothing, and puts off the first call of a backward and the end of the last. In elements.
  static constexpr std::int64_t kLargestBucket = kLargestReduceBucket;
  /// Buckets that exist beside the gradients when they are reduced in a thread: some wait while one is filled.
  static constexpr std::size_t kBuffers = 4;
  static constexpr std::int64_t kAlignment = 16;  // parameters begin at multiples of so many elements, for vector code
  static constexpr std::int64_t aligned(std::int64_t elements) {
    return (elements + kAlignment - 1) / kAlignment * kAlignment;
  }

  struct Parameter {
    std::int64_t numel;
    bool whole = false;
    bool given = false;               // its gradient is made from others on its owner: it has a bucket of its own
    std::optional<std::size_t> like;  // cut as that parameter of as many elements is; for one that is given
  };

  /// A bucket holds at most `bucket_elements` and kLargestBucket, but always one parameter.
  Partition(const std::vector<Parameter>& parameters, std::int64_t bucket_elements, int ranks);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Indices of parameters in the order of the flat space.
  const std::vector<std::size_t>& order() const { return order_; }
  std::int64_t numel() const { return numel_; }
  int ranks() const { return ranks_; }
  std::int64_t numel_of(std::size_t parameter) const { return parameters_[parameter].numel; }
  std::int64_t largest_bucket() const;

  std::int64_t first(std::size_t parameter) const { return first_[parameter]; }  // in the flat space
  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  /// What `rank` owns of a parameter: one range, perhaps empty.
  Range part(std::size_t parameter, int rank) const;
  std::int64_t owned(int rank) const;  // elements, with what aligns them
  /// The same of buckets whose gradients are reduced, of one rank and of all.
  std::int64_t reduced(int rank) const;
  std::int64_t reduced() const;

 private:
  void close(std::vector<std::int64_t>& load);
  void spread(Bucket& bucket, std::vector<std::int64_t>& load);
  void cut_like_others();

  std::vector<Parameter> parameters_;
  int ranks_;
  std::int64_t numel_ = 0;
  std::vector<std::size_t> order_;
  std::vector<std::int64_t> first_;
  std::vector<std::size_t> bucket_of_;
  std::vector<Bucket> buckets_;
};

/// Blocks of a range that begins at a multiple of the block.
inline std::int64_t blocks_in(std::int64_t numel) { return (numel + Partition::kBlock - 1) / Partition::kBlock; }

}  // namespace capstan
