#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"

namespace capstan::curriculum {

/// The samples of the data in the order of one metric's difficulty: index files of an analysis, mapped.
class MetricIndex {
 public:
  struct Files {
    std::string metric;           // for messages
    std::string index_to_sample;  // a file's name without .idx and .bin
    std::string index_to_metric;  // the same; empty where difficulty is counted in percentiles
  };

  /// Difficulty is counted by value where `index_to_metric` is named, and in percentiles otherwise: each has
  /// samples / `percentiles` samples, rounded down, and the last also what remains. Throws sdk::Error naming the file.
  MetricIndex(const Files& files, std::int64_t samples, std::int64_t percentiles);

  /// How many samples are at most so difficult; they are those at the places below.
  std::int64_t up_to(std::int64_t difficulty) const;
  /// `count` samples from `place` on.
  void read(std::int64_t place, std::int64_t count, std::int64_t* out) const { samples_.read(place, count, out); }
  /// The values of the first and the last row; the first and the last percentile.
  std::int64_t least() const { return values_ ? values_->value(0) : 1; }

  /// Reads all of it: each sample must be there once, and values must ascend. What was found good is noted in `seals`,
  /// a folder, where `may_write`, and not looked at again while the files stay as they are. Throws sdk::Error.
  void check(const std::filesystem::path& seals, bool may_write) const;

 private:
  void check_values() const;
  void check_samples() const;
  [[noreturn]] void refuse(std::int64_t place, std::int64_t sample, const std::string& why) const;
  std::string seal_text() const;

  Files files_;
  sdk::IndexedRows samples_;
  std::optional<sdk::IndexedRows> values_;
  std::int64_t count_, percentiles_;
};

}  // namespace capstan::curriculum
