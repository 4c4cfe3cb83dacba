#include "cli/data/packing.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace capstan::cli {
namespace {

constexpr std::size_t kWindow = 10'000;
constexpr std::int64_t kWindowTokens = std::int64_t{64} << 20;

/// Rows that are open, and the room that each has left; finds the first with enough in log n steps.
class Rooms {
 public:
  Rooms(std::size_t rows, std::int64_t length) {
    while (leaves_ < rows) leaves_ *= 2;
    most_.assign(2 * leaves_, length);
  }

  /// The first row with room for `size`, whose room shrinks by it.
  std::size_t take(std::int64_t size) {
    std::size_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= size ? 2 * node : 2 * node + 1;
    most_[node] -= size;
    for (std::size_t up = node / 2; up > 0; up /= 2) most_[up] = std::max(most_[2 * up], most_[2 * up + 1]);
    return node - leaves_;
  }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> most_;  // a tree in an array: of node n the larger of nodes 2 n and 2 n + 1
};

}  // namespace

std::vector<std::vector<std::size_t>> first_fit(const std::vector<std::int64_t>& sizes, std::int64_t length) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<std::size_t>> rows;
  Rooms rooms(sizes.size(), length);
  for (const std::size_t document : order) {
    const std::size_t row = rooms.take(sizes[document]);
    if (row == rows.size()) rows.emplace_back();
    rows[row].push_back(document);
  }
  return rows;
}

void RowPacker::take(EncodedRow document) {
  const auto size = static_cast<std::int64_t>(document.ids.size()), room = std::min(size, length_);
  if (size > length_) {
    ++long_documents;
    long_tokens += long_ == Long::kDrop ? size : size - length_;
    if (long_ == Long::kDrop) return;
  }
  if (!document.has_label(static_cast<std::size_t>(room))) {
    ++without_label;
    tokens_without_label += room;
    return;
  }
  document.ids.resize(static_cast<std::size_t>(room));
  if (!document.counts.empty()) document.counts.resize(static_cast<std::size_t>(room));
  window_tokens_ += room;
  window_.push_back(std::move(document));
  if (window_.size() == kWindow || window_tokens_ >= kWindowTokens) write_window();
}

void RowPacker::write_window() {
  std::vector<std::int64_t> sizes;
  for (const EncodedRow& document : window_) sizes.push_back(static_cast<std::int64_t>(document.ids.size()));
  for (const std::vector<std::size_t>& row : first_fit(sizes, length_)) {
    for (const std::size_t document : row) {
      to_.append(window_[document].ids, window_[document].counts);
      to_.end_document();
    }
    to_.end_row(static_cast<std::int64_t>(row.size()));
  }
  window_.clear();
  window_tokens_ = 0;
}

void RowPacker::finish() { write_window(); }

void RowCount::add(std::int64_t size) {
  window_.push_back(size);
  window_tokens_ += size;
  if (window_.size() < kWindow && window_tokens_ < kWindowTokens) return;
  rows_ = rows();
  window_.clear();
  window_tokens_ = 0;
}

std::int64_t RowCount::rows() const { return rows_ + std::ssize(first_fit(window_, length_)); }

}  // namespace capstan::cli
