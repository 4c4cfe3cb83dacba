#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace capstan {

/// What a metric has measured of a part of the samples: the unit of work of an analysis, and of going on with one that
/// was interrupted. A shard is written aside and renamed; one that is there and whole needs not be measured again.
class MetricShards {
 public:
  static constexpr std::int64_t kSamples = std::int64_t{1} << 20;  // in a shard, but for the last

  /// `identity`: a digest of the data, the metric and its parameters, so that shards of another analysis count as none.
  /// `width`: numbers of a shard; 0: one a sample.
  MetricShards(std::filesystem::path folder, std::uint64_t identity, std::int64_t samples, std::uint64_t width,
               std::int64_t shard_samples = kSamples);

  std::int64_t count() const;
  std::int64_t first_sample(std::int64_t shard) const { return shard * shard_samples_; }
  std::int64_t samples_of(std::int64_t shard) const;
  /// How many numbers a shard has.
  std::size_t numbers_of(std::int64_t shard) const;

  /// The shard is there, whole and of this analysis.
  bool is_done(std::int64_t shard) const;
  /// Throws RuntimeFault with path and reason.
  void write(std::int64_t shard, std::span<const std::int64_t> numbers) const;
  /// Throws RuntimeFault naming the file where it is not there or not whole.
  std::vector<std::int64_t> read(std::int64_t shard) const;
  /// Removes all shards, of other analyses too.
  void remove() const;

 private:
  std::filesystem::path path_of(std::int64_t shard) const;

  std::filesystem::path folder_;
  std::uint64_t identity_;
  std::int64_t samples_;
  std::uint64_t width_;
  std::int64_t shard_samples_;
};

}  // namespace capstan
