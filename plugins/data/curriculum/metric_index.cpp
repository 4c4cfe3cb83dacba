#include "plugins/data/curriculum/metric_index.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::curriculum {
namespace {

namespace fs = std::filesystem;

/// Samples that are looked at together.
constexpr std::int64_t kChunk = 1 << 16;

/// A text that changes when a file does.
std::string identity(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return path + " ?";
  return path + " " + std::to_string(facts.st_ino) + " " + std::to_string(facts.st_size) + " " +
         std::to_string(facts.st_mtim.tv_sec) + "." + std::to_string(facts.st_mtim.tv_nsec);
}

}  // namespace

MetricIndex::MetricIndex(const Files& files, std::int64_t samples, std::int64_t percentiles)
    : files_(files), samples_(files.index_to_sample), count_(samples), percentiles_(percentiles) {
  if (!files.index_to_metric.empty()) {
    values_.emplace(files.index_to_metric);
    if (values_->rows() != samples_.rows() || values_->values() != samples_.rows()) {
      throw sdk::Error(
          samples_.index_path() + ": has " + std::to_string(samples_.rows()) + " rows, and " + values_->index_path() +
          " has " + std::to_string(values_->values()) +
          " values: the two do not belong together. With difficulty_type \"value\" index_to_sample_path is the plain "
          "index, NAME_index_to_sample, and not the one of merged percentiles.");
    }
  }
  if (samples_.values() != count_) {
    throw sdk::Error(samples_.values_path() + ": has " + std::to_string(samples_.values()) +
                     " samples, and the data has " + std::to_string(count_) +
                     ": the metric was measured on other data, or at another sequence length.");
  }
  if (!values_ && count_ / percentiles_ == 0) {
    throw sdk::ConfigMistake(
        "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics." + files.metric + ".max_difficulty",
        std::to_string(percentiles_) + " percentiles cannot be made of " + std::to_string(count_) +
            " samples. Lower it.");
  }
}

std::int64_t MetricIndex::up_to(std::int64_t difficulty) const {
  if (!values_) {
    return difficulty >= percentiles_ ? count_ : count_ / percentiles_ * std::max<std::int64_t>(difficulty, 0);
  }
  std::int64_t low = 0, high = values_->rows();  // the first row above lies in [low, high]
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (values_->value(middle) <= difficulty) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low == samples_.rows() ? count_ : samples_.begin(low);
}

std::string MetricIndex::seal_text() const {
  std::string text = std::to_string(count_) + " samples\n" + identity(samples_.index_path()) + "\n" +
                     identity(samples_.values_path()) + "\n";
  if (values_) text += identity(values_->index_path()) + "\n" + identity(values_->values_path()) + "\n";
  return text;
}

void MetricIndex::check(const fs::path& seals, bool may_write) const {
  // Paths may be long and hold slashes: the name of the seal is the metric's, and what it holds names the files.
  std::string name = files_.metric;
  std::replace(name.begin(), name.end(), '/', '_');
  const fs::path seal = seals / (name + ".checked");
  const std::string text = seal_text();
  std::ifstream in(seal, std::ios::binary);
  if (in && std::string(std::istreambuf_iterator<char>(in), {}) == text) return;
  samples_.check();
  if (values_) check_values();
  check_samples();
  if (may_write) std::ofstream(seal, std::ios::binary) << text;
}

void MetricIndex::check_values() const {
  values_->check();
  std::int64_t before = 0;
  for (std::int64_t row = 0; row < values_->rows(); ++row) {
    if (values_->size(row) != 1) {
      throw sdk::Error(values_->index_path() + ": row " + std::to_string(row) + " has " +
                       std::to_string(values_->size(row)) + " values, and one is expected.");
    }
    const std::int64_t value = values_->value(row);
    if (row > 0 && value <= before) {
      throw sdk::Error(values_->values_path() + ": the value of row " + std::to_string(row) + " is " +
                       std::to_string(value) + ", behind " + std::to_string(before) + ": values must ascend.");
    }
    before = value;
  }
}

void MetricIndex::check_samples() const {
  std::vector<bool> seen(static_cast<std::size_t>(count_));
  std::vector<std::int64_t> chunk(static_cast<std::size_t>(std::min(kChunk, count_)));
  for (std::int64_t place = 0; place < count_; place += kChunk) {
    const std::int64_t some = std::min(kChunk, count_ - place);
    samples_.read(place, some, chunk.data());
    for (std::int64_t i = 0; i < some; ++i) {
      const std::int64_t sample = chunk[static_cast<std::size_t>(i)];
      if (sample < 0 || sample >= count_) {
        refuse(place + i, sample, ", and the data has " + std::to_string(count_) + " samples.");
      }
      // As many samples as the data has, and none twice: then none is missing.
      if (seen[static_cast<std::size_t>(sample)]) {
        refuse(place + i, sample, ", which stands before it already: each sample must be there once.");
      }
      seen[static_cast<std::size_t>(sample)] = true;
    }
  }
}

void MetricIndex::refuse(std::int64_t place, std::int64_t sample, const std::string& why) const {
  throw sdk::Error(samples_.values_path() + ": value " + std::to_string(place) + " is sample " +
                   std::to_string(sample) + why);
}

}  // namespace capstan::curriculum
