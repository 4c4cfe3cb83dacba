#include "plugins/attention/block_sparse/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>

namespace capstan::attention {
namespace {

using Index = std::uint32_t;
using Columns = std::vector<Index>;  // set ones, ascending

/// What gathering a key costs, in queries that are multiplied with it.
constexpr double kQueriesOfOverhead = 4;
/// A run of so many keys is read where it lies.
constexpr Index kLongRun = 128;

struct Rows {
  std::vector<Index> rows;
  Columns columns;  // of any of them
};

Columns columns_of(const sdk::AttentionLayout& layout, Index head, Index row) {
  Columns columns;
  const Index end = layout.causal ? row + 1 : layout.blocks;
  for (Index column = 0; column < end; ++column) {
    if (layout.is_set(head, row, column)) columns.push_back(column);
  }
  return columns;
}

Columns joined(const Columns& a, const Columns& b) {
  Columns all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

/// What computing `rows` block rows with `columns` block columns costs, in products of one query block.
double cost(std::size_t rows, std::size_t columns, Index block) {
  return static_cast<double>(columns) * (static_cast<double>(rows) + kQueriesOfOverhead / block);
}

/// Block rows that are computed together. A row joins the rows before it where that is less work.
std::vector<Rows> grouped(const sdk::AttentionLayout& layout, Index head) {
  std::vector<Columns> columns;
  std::map<Columns, std::vector<Index>> equal;
  for (Index row = 0; row < layout.blocks; ++row) {
    columns.push_back(columns_of(layout, head, row));
    equal[columns.back()].push_back(row);
  }
  std::vector<Rows> groups;
  const Index most = std::max(kTileQueries / layout.block, 1u);
  std::vector<bool> taken(layout.blocks, false);
  for (Index first = 0; first < layout.blocks; ++first) {
    if (taken[first]) continue;
    for (const Index row : equal[columns[first]]) {
      taken[row] = true;
      Rows* last = groups.empty() ? nullptr : &groups.back();
      if (last != nullptr && last->rows.size() < most) {
        Columns both = joined(last->columns, columns[row]);
        const std::size_t rows = last->rows.size();
        if (cost(rows + 1, both.size(), layout.block) <= cost(rows, last->columns.size(), layout.block) +
                                                             cost(1, columns[row].size(), layout.block)) {
          last->columns = std::move(both);
          last->rows.push_back(row);
          continue;
        }
      }
      groups.push_back({{row}, columns[row]});
    }
  }
  return groups;
}

/// Consecutive blocks as runs of tokens.
std::vector<Run> runs_of(std::span<const Index> blocks, Index block) {
  std::vector<Run> runs;
  for (const Index one : blocks) {
    if (!runs.empty() && runs.back().end == one * block) {
      runs.back().end += block;
    } else {
      runs.push_back({one * block, (one + 1) * block});
    }
  }
  return runs;
}

/// Cuts a group's columns into panels of at most kPanelKeys keys: long runs, and what is between them.
std::vector<Panel> panels_of(const Columns& columns, Index block) {
  std::vector<Panel> panels;
  Index room = 0;  // of the last panel
  for (const Run& run : runs_of(columns, block)) {
    const bool alone = run.end - run.begin >= kLongRun;
    for (Index begin = run.begin; begin < run.end;) {
      if (alone || room == 0) {
        panels.emplace_back();
        room = kPanelKeys;
      }
      const Index end = std::min(run.end, begin + room);
      panels.back().runs.push_back({begin, end});
      room -= end - begin;
      begin = end;
    }
    if (alone) room = 0;
  }
  return panels;
}

/// The parts of a panel in blocks that a row does not attend to, and causality does not leave out by itself.
std::vector<Run> unset_in(const Panel& panel, const sdk::AttentionLayout& layout, Index head, Index row) {
  std::vector<Run> unset;
  for (const Run& run : panel.runs) {
    for (Index begin = run.begin; begin < run.end;) {
      const Index column = begin / layout.block, end = std::min(run.end, (column + 1) * layout.block);
      const bool later = layout.causal && column > row;
      if (!later && !layout.is_set(head, row, column)) {
        if (!unset.empty() && unset.back().end == begin) {
          unset.back().end = end;
        } else {
          unset.push_back({begin, end});
        }
      }
      begin = end;
    }
  }
  return unset;
}

HeadPlan plan_head(const sdk::AttentionLayout& layout, Index head) {
  HeadPlan plan;
  for (const Rows& rows : grouped(layout, head)) {
    Group group;
    group.panels = panels_of(rows.columns, layout.block);
    for (const Index row : rows.rows) {
      std::vector<std::vector<Run>> unset;
      for (const Panel& panel : group.panels) unset.push_back(unset_in(panel, layout, head, row));
      const Index end = (row + 1) * layout.block;
      for (Index begin = row * layout.block; begin < end; begin += kTileQueries) {
        group.slices.push_back({row, begin, std::min(end, begin + kTileQueries)});
        group.unset.push_back(unset);
      }
    }
    if (group.slices.size() == rows.rows.size()) {
      plan.groups.push_back(std::move(group));
      continue;
    }
    // A block larger than a tile.
    for (std::size_t i = 0; i < group.slices.size(); ++i) {
      plan.groups.push_back({{group.slices[i]}, group.panels, {group.unset[i]}});
    }
  }
  return plan;
}

}  // namespace

Plan make_plan(const sdk::AttentionLayout& layout) {
  Plan plan;
  plan.block = layout.block;
  plan.blocks = layout.blocks;
  plan.causal = layout.causal;
  const std::size_t cells = std::size_t{layout.blocks} * layout.blocks;
  std::vector<Index> first_of;  // heads
  for (Index head = 0; head < layout.heads; ++head) {
    const auto same = std::find_if(first_of.begin(), first_of.end(), [&](Index other) {
      return std::equal(layout.cells + head * cells, layout.cells + (head + 1) * cells, layout.cells + other * cells);
    });
    plan.of_heads.push_back(static_cast<Index>(same - first_of.begin()));
    if (same != first_of.end()) continue;
    first_of.push_back(head);
    plan.distinct.push_back(plan_head(layout, head));
  }
  return plan;
}

}  // namespace capstan::attention
