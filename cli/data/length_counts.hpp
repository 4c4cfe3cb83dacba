#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace capstan::cli {

/// How many documents there are of each length. Memory grows with the number of different lengths, which is at most
/// the square root of twice the number of tokens.
class LengthCounts {
 public:
  /// Documents of `least` to `greatest` tokens.
  struct Bar {
    std::int64_t least, greatest, documents;
  };

  void add(std::int64_t length);

  std::int64_t documents() const { return documents_; }
  std::int64_t total() const { return total_; }
  /// Of at least one document: the shortest, the longest, and the arithmetic mean.
  std::int64_t least() const { return counts_.begin()->first; }
  std::int64_t greatest() const { return counts_.rbegin()->first; }
  double mean() const { return static_cast<double>(total_) / static_cast<double>(documents_); }
  /// The middle length, or the mean of the two in the middle.
  double median() const;
  /// The shortest length that at least `share` of the documents do not exceed; 0 < share <= 1.
  std::int64_t quantile(double share) const;
  /// Bars whose ends are powers of two: 0, 1, 2 to 3, 4 to 7 and so on, from the shortest document to the longest.
  std::vector<Bar> histogram() const;

  /// Sum over the documents of what is missing to `length`, and of what exceeds it.
  std::int64_t missing_to(std::int64_t length) const;
  std::int64_t beyond(std::int64_t length) const;

 private:
  /// The length of the document with this place among the sorted lengths, from 1 on.
  std::int64_t at(std::int64_t place) const;

  std::map<std::int64_t, std::int64_t> counts_;
  std::int64_t documents_ = 0, total_ = 0;
};

}  // namespace capstan::cli
