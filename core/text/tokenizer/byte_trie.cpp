#include "core/text/tokenizer/byte_trie.hpp"

#include <algorithm>
#include <bit>

namespace capstan::tokenizer {
namespace {

/// Edges of a trie of sorted texts: each text adds those behind what it has in common with the text before it.
std::size_t count_edges(const std::vector<ByteTrie::Entry>& sorted) {
  std::size_t edges = 0;
  std::string_view before;
  for (const auto& [text, value] : sorted) {
    const auto common = std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first;
    edges += static_cast<std::size_t>(text.end() - common);
    before = text;
  }
  return edges;
}

}  // namespace

ByteTrie::ByteTrie(std::vector<Entry> entries) : values_{-1} {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& one, const Entry& other) { return one.first < other.first; });
  const std::size_t edges = count_edges(entries);
  edges_.resize(std::bit_ceil(edges + edges / 4 + 2));
  shift_ = 64 - std::countr_zero(edges_.size());
  for (const Entry& entry : entries) add(entry);
}

void ByteTrie::add(const Entry& entry) {
  std::uint32_t node = 0;
  for (const char byte : entry.first) {
    const std::uint64_t wanted = key(node, static_cast<unsigned char>(byte));
    Edge& edge = edges_[place(wanted)];
    if (edge.key == 0) {
      edge = {wanted, static_cast<std::uint32_t>(values_.size())};
      values_.push_back(-1);
    }
    node = edge.child;
  }
  if (values_[node] < 0) values_[node] = entry.second;
}

}  // namespace capstan::tokenizer
