#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace capstan::tokenizer {

/// Texts with a number each, found by their first bytes: a trie whose edges lie in one open-addressed hash table.
class ByteTrie {
 public:
  using Entry = std::pair<std::string_view, std::int32_t>;

  /// `entries`: texts, which are not empty, with numbers that are not negative. Of equal texts the first counts.
  explicit ByteTrie(std::vector<Entry> entries);

  /// Calls use(size, value) for each text that `in` begins with at `at`, the shortest first.
  template <class Use>
  void each_prefix(std::string_view in, std::size_t at, Use&& use) const {
    std::uint32_t node = 0;
    for (std::size_t end = at; end < in.size();) {
      node = child(node, static_cast<unsigned char>(in[end]));
      if (node == 0) return;
      ++end;
      if (values_[node] >= 0) use(end - at, values_[node]);
    }
  }

 private:
  struct Edge {
    std::uint64_t key = 0;  // (parent << 8 | byte) + 1; 0: free
    std::uint32_t child = 0;
  };

  static std::uint64_t key(std::uint32_t node, unsigned char byte) {
    return (static_cast<std::uint64_t>(node) << 8 | byte) + 1;
  }
  std::size_t place(std::uint64_t key) const {
    constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    std::size_t at = (key * kGoldenRatio) >> shift_;
    while (edges_[at].key != 0 && edges_[at].key != key) at = (at + 1) & (edges_.size() - 1);
    return at;
  }
  void add(const Entry& entry);
  /// 0 where there is none.
  std::uint32_t child(std::uint32_t node, unsigned char byte) const { return edges_[place(key(node, byte))].child; }

  std::vector<Edge> edges_;
  std::vector<std::int32_t> values_;  // of each node; -1: no text ends there
  int shift_;
};

}  // namespace capstan::tokenizer
