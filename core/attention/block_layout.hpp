#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/registry/registry.hpp"

namespace capstan {

/// Which blocks of keys the blocks of queries attend to, for sequences of one length.
struct BlockLayout {
  std::uint32_t heads = 0, block = 0, blocks = 0;
  std::int64_t tokens = 0;
  bool causal = false;              // no token attends to a later one, inside of blocks too
  bool says_so = false;             // the component does, not only the model's call
  std::vector<std::uint8_t> cells;  // [heads][blocks of queries][blocks of keys]: 1 where there are scores, else 0

  bool is_set(std::uint32_t head, std::uint32_t row, std::uint32_t column) const {
    return cells[(std::size_t{head} * blocks + row) * blocks + column] != 0;
  }
  /// Takes the cells above the diagonal out, where it is causal. Whether any was set.
  bool drop_later();
  /// Cells that are set, over all heads.
  std::int64_t set_cells() const;
  /// Cells of dense attention over all heads: of the triangle where it is causal.
  std::int64_t dense_cells() const;
  double density() const { return static_cast<double>(set_cells()) / static_cast<double>(dense_cells()); }
  /// Scores of the cells that are set, over all heads: pairs of a query and a key.
  double scores() const;
};

/// Asks a component of kind "attention" for its layout, as it is: what it sets above the diagonal is there where it is
/// causal, too. `causal`: the model's call is, whatever the component says;
/// `where` is the key that chose the component, for messages. Throws ConfigError where its parameters do not fit the
/// heads or the sequence, PluginError where it is no layout.
BlockLayout make_layout(const Component& component, const std::string& where, std::int64_t heads, std::int64_t tokens,
                        bool causal, std::uint64_t seed);

}  // namespace capstan
