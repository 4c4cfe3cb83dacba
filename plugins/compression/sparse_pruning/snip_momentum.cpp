#include "snip_momentum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::compression {
namespace {

std::uint64_t read_count(const std::string& text) {
  const bool digits =
      !text.empty() && text.size() <= 6 && text[0] != '0' && text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::stoull(text) : 0;
}

}  // namespace

bool SnipSchedule::is_instant(std::int64_t updates) const {
  if (first == last && first == 0) return updates == 1;
  return updates >= first && updates <= last && (updates - first) % stride == 0;
}

double SnipSchedule::share(std::int64_t updates) const {
  const double aim = std::min(sparsity, kMost);
  if (instants() <= 1) return aim;
  const double steps = static_cast<double>(instants() - 1), done = static_cast<double>((updates - first) / stride);
  return std::min(aim, 1 - std::pow(std::pow(1 - aim, 1 / steps), done));
}

BlockPattern BlockPattern::read(const std::string& text, const std::string& where) {
  const auto cut = text.find_first_of("x:");
  BlockPattern pattern;
  const std::string left = text.substr(0, cut), right = cut == std::string::npos ? "" : text.substr(cut + 1);
  pattern.of_groups = cut != std::string::npos && text[cut] == ':';
  pattern.rows = left == "channel" && !pattern.of_groups ? 0 : read_count(left);
  pattern.columns = right == "channel" && !pattern.of_groups ? 0 : read_count(right);
  const bool counts = (pattern.rows > 0 || left == "channel") && (pattern.columns > 0 || right == "channel");
  const bool channels = pattern.rows > 0 || pattern.columns == 1, inputs = pattern.columns > 0 || pattern.rows == 1;
  if (cut == std::string::npos || !counts || !channels || !inputs ||
      (pattern.of_groups && pattern.rows >= pattern.columns)) {
    throw sdk::ConfigMistake(
        where,
        "must be NxM, channelx1, 1xchannel, or N:M with N below M, such as \"4x1\" or \"2:4\", got \"" + text + "\".");
  }
  return pattern;
}

bool BlockedWeight::fits(const std::vector<std::int64_t>& shape, const BlockPattern& pattern) {
  if (shape.size() < 2) return false;
  const auto rows = static_cast<std::uint64_t>(shape[0]);
  std::uint64_t columns = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) columns *= static_cast<std::uint64_t>(shape[i]);
  if (pattern.of_groups) return columns % pattern.columns == 0;
  return (pattern.rows == 0 || rows % pattern.rows == 0) && (pattern.columns == 0 || columns % pattern.columns == 0);
}

BlockedWeight::BlockedWeight(const std::vector<std::int64_t>& shape, const BlockPattern& pattern)
    : pattern_(pattern), rows_(static_cast<std::uint64_t>(shape[0])), in_(static_cast<std::uint64_t>(shape[1])) {
  columns_ = in_;
  for (std::size_t i = 2; i < shape.size(); ++i) columns_ *= static_cast<std::uint64_t>(shape[i]);
  kernel_ = columns_ / in_;
  if (pattern_.of_groups) {
    blocks_ = rows_ * columns_ / pattern_.columns;
    return;
  }
  if (pattern_.rows == 0) pattern_.rows = rows_;
  if (pattern_.columns == 0) pattern_.columns = columns_;
  blocks_ = rows_ / pattern_.rows * (columns_ / pattern_.columns);
}

std::uint64_t BlockedWeight::element(std::uint64_t row, std::uint64_t column) const {
  const std::uint64_t position = column / in_, channel = column % in_;
  return row * columns_ + channel * kernel_ + position;
}

BlockedWeight::Place BlockedWeight::place(std::uint64_t element) const {
  const std::uint64_t row = element / columns_, rest = element % columns_;
  const std::uint64_t column = rest % kernel_ * in_ + rest / kernel_;
  if (pattern_.of_groups) {
    return {row * (columns_ / pattern_.columns) + column / pattern_.columns, column % pattern_.columns};
  }
  return {row / pattern_.rows * (columns_ / pattern_.columns) + column / pattern_.columns, 0};
}

/// The N places of a group of M with the smallest scores, the first ones among equals.
std::vector<std::uint64_t> BlockedWeight::candidates(std::span<const float> elements, std::uint64_t group) const {
  const std::uint64_t of_row = columns_ / pattern_.columns, row = group / of_row;
  const std::uint64_t first = group % of_row * pattern_.columns;
  std::vector<std::uint64_t> places(pattern_.columns);
  std::iota(places.begin(), places.end(), std::uint64_t{0});
  std::stable_sort(places.begin(), places.end(), [&](std::uint64_t a, std::uint64_t b) {
    return elements[element(row, first + a)] < elements[element(row, first + b)];
  });
  places.resize(pattern_.rows);
  return places;
}

std::vector<float> BlockedWeight::scores(std::span<const float> elements) const {
  std::vector<float> scores(blocks_);
  if (pattern_.of_groups) {
    const std::uint64_t of_row = columns_ / pattern_.columns;
    for (std::uint64_t group = 0; group < blocks_; ++group) {
      double sum = 0;
      for (const std::uint64_t at : candidates(elements, group)) {
        sum += static_cast<double>(elements[element(group / of_row, group % of_row * pattern_.columns + at)]);
      }
      scores[group] = static_cast<float>(sum / static_cast<double>(pattern_.columns));
    }
    return scores;
  }
  std::vector<double> sums(blocks_);
  for (std::uint64_t at = 0; at < elements.size(); ++at) sums[place(at).block] += static_cast<double>(elements[at]);
  const auto count = static_cast<double>(pattern_.rows * pattern_.columns);
  std::transform(sums.begin(), sums.end(), scores.begin(), [&](double sum) { return static_cast<float>(sum / count); });
  return scores;
}

void BlockedWeight::fill_mask(std::span<const float> elements, std::span<const float> scores, float threshold,
                              std::uint64_t offset, std::span<std::uint8_t> mask) const {
  for (std::uint64_t i = 0; i < mask.size(); ++i) {
    const Place at = place(offset + i);
    mask[i] = scores[at.block] > threshold ? 1 : 0;
    if (mask[i] != 0 || !pattern_.of_groups) continue;
    const std::vector<std::uint64_t> pruned = candidates(elements, at.block);
    mask[i] = std::find(pruned.begin(), pruned.end(), at.in_group) == pruned.end() ? 1 : 0;
  }
}

std::vector<float> snip_thresholds(const std::vector<std::vector<float>>& of_layers,
                                   const std::vector<std::uint64_t>& blocks, std::uint64_t pruned, bool parts,
                                   const sdk::PieceRanks& ranks) {
  const std::size_t layers = blocks.size();
  std::vector<float> thresholds(layers, -std::numeric_limits<float>::infinity());
  std::vector<bool> capped(layers, false);
  std::uint64_t left = pruned;  // to be taken from the layers that are not at their most
  for (;;) {
    std::uint64_t total = 0;
    std::vector<sdk::PieceRanks::Part> open;
    for (std::size_t l = 0; l < layers; ++l) {
      if (capped[l]) continue;
      total += blocks[l];
      open.push_back({of_layers[l], 0, {}});
    }
    if (open.empty() || left == 0) return thresholds;
    left = std::min(left, total);
    const float threshold = ranks.select_largest(open, {total - left + 1}).front();
    std::vector<std::int64_t> below(layers);
    for (std::size_t l = 0; l < layers; ++l) {
      if (capped[l]) continue;
      thresholds[l] = threshold;
      below[l] =
          std::count_if(of_layers[l].begin(), of_layers[l].end(), [&](float score) { return score <= threshold; });
    }
    if (parts) ranks.collectives().all_reduce_sum(std::span<std::int64_t>(below));
    bool again = false;
    for (std::size_t l = 0; l < layers; ++l) {
      const auto most = static_cast<std::uint64_t>(SnipSchedule::kMost * static_cast<double>(blocks[l]));
      if (capped[l] || static_cast<std::uint64_t>(below[l]) <= most) continue;
      capped[l] = again = true;
      left -= std::min(left, most);
      thresholds[l] = -std::numeric_limits<float>::infinity();
      if (most > 0) thresholds[l] = ranks.select_largest({{of_layers[l], 0, {}}}, {blocks[l] - most + 1}).front();
    }
    if (!again) return thresholds;
  }
}

}  // namespace capstan::compression
