#include "plugins/attention/block_sparse/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace capstan::attention {
namespace {

using Index = std::uint32_t;
using Columns = std::vector<Index>;  // set ones, ascending

/// What gathering a key costs, in queries that are multiplied with it.
constexpr double kQueriesOfOverhead = 6;
/// What one more panel costs, in scores.
constexpr double kScoresOfPanel = 400;
/// A run of so many keys is read where it lies.
constexpr Index kLongRun = 128;

Columns columns_of(const sdk::AttentionLayout& layout, Index head, Index row) {
  Columns columns;
  const Index end = layout.causal ? row + 1 : layout.blocks;
  for (Index column = 0; column < end; ++column) {
    if (layout.is_set(head, row, column)) columns.push_back(column);
  }
  return columns;
}

/// Block columns of a group that are computed by the same rows, the first to the last that sets one of them.
struct Part {
  Index first, last;  // rows of the group
  Columns columns;
};

/// Block rows that are computed together.
class Draft {
 public:
  Draft(Index block, Index row, const Columns& columns) : block_(block) { add(row, columns); }

  void add(Index row, const Columns& columns) {
    const auto place = static_cast<Index>(rows_.size());
    rows_.push_back(row);
    std::vector<Column> all;
    all.reserve(columns_.size() + columns.size());
    auto old = columns_.begin();
    for (const Index column : columns) {
      while (old != columns_.end() && old->block < column) all.push_back(*old++);
      if (old != columns_.end() && old->block == column) {
        all.push_back({column, old->first, place});
        ++old;
      } else {
        all.push_back({column, place, place});
      }
    }
    all.insert(all.end(), old, columns_.end());
    columns_ = std::move(all);
  }

  const std::vector<Index>& rows() const { return rows_; }
  /// Neighbours that the same rows compute, as far as computing some cells in vain costs less than another product.
  /// Long runs keep to themselves.
  std::vector<Part> parts() const {
    std::vector<Part> parts;
    const double cells_of_part = kScoresOfPanel / block_ / block_;
    std::size_t run_end = 0;  // of the run under way
    bool in_long_run = false;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const Column& column = columns_[i];
      bool begins = parts.empty();
      if (i == run_end) {
        do ++run_end;
        while (run_end < columns_.size() && columns_[run_end].block == columns_[run_end - 1].block + 1);
        const bool is_long = (run_end - i) * block_ >= kLongRun;
        begins |= is_long || in_long_run;
        in_long_run = is_long;
      }
      if (!begins) {
        Part& part = parts.back();
        const Index first = std::min(part.first, column.first), last = std::max(part.last, column.last);
        const auto count = static_cast<double>(part.columns.size());
        const double joined = (last - first + 1.0) * (count + 1);
        const double apart = (part.last - part.first + 1.0) * count + (column.last - column.first + 1.0);
        if (joined <= apart + cells_of_part) {
          part.first = first;
          part.last = last;
          part.columns.push_back(column.block);
          continue;
        }
      }
      parts.push_back({column.first, column.last, {column.block}});
    }
    return parts;
  }
  /// In products of one block.
  double cost() const {
    double cost = 0;
    for (const Part& part : parts()) {
      cost += static_cast<double>(part.columns.size()) * (part.last - part.first + 1.0 + kQueriesOfOverhead / block_) +
              kScoresOfPanel / block_ / block_;
    }
    return cost;
  }

 private:
  struct Column {
    Index block, first, last;  // rows of the draft
  };
  Index block_;
  std::vector<Index> rows_;
  std::vector<Column> columns_;
};

/// The rows of a head in groups. A row joins the rows before it where that is less work.
std::vector<Draft> grouped(const sdk::AttentionLayout& layout, Index head) {
  std::vector<Columns> columns;
  std::map<Columns, std::vector<Index>> equal;
  for (Index row = 0; row < layout.blocks; ++row) {
    columns.push_back(columns_of(layout, head, row));
    equal[columns.back()].push_back(row);
  }
  std::vector<Draft> groups;
  const Index most = std::max(kTileQueries / layout.block, 1u);
  std::vector<bool> taken(layout.blocks, false);
  for (Index first = 0; first < layout.blocks; ++first) {
    if (taken[first]) continue;
    for (const Index row : equal[columns[first]]) {
      taken[row] = true;
      Draft alone(layout.block, row, columns[row]);
      if (!groups.empty() && groups.back().rows().size() < most) {
        Draft both = groups.back();
        both.add(row, columns[row]);
        if (both.cost() <= groups.back().cost() + alone.cost()) {
          groups.back() = std::move(both);
          continue;
        }
      }
      groups.push_back(std::move(alone));
    }
  }
  return groups;
}

/// Consecutive blocks as runs of tokens.
std::vector<Run> runs_of(const Columns& blocks, Index block) {
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

/// Cuts a part into panels of at most kPanelKeys keys.
void add_panels(const Part& part, Index block, std::vector<Panel>& panels) {
  Index room = 0;  // of the last panel
  for (const Run& run : runs_of(part.columns, block)) {
    for (Index begin = run.begin; begin < run.end;) {
      if (room == 0) {
        panels.push_back({{}, part.first, part.last});
        room = kPanelKeys;
      }
      const Index end = std::min(run.end, begin + room);
      panels.back().runs.push_back({begin, end});
      room -= end - begin;
      begin = end;
    }
  }
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
  for (const Draft& draft : grouped(layout, head)) {
    Group group;
    for (const Part& part : draft.parts()) add_panels(part, layout.block, group.panels);
    for (const Index row : draft.rows()) {
      group.slices.push_back({row, row * layout.block, (row + 1) * layout.block});
      std::vector<std::vector<Run>>& unset = group.unset.emplace_back();
      for (const Panel& panel : group.panels) unset.push_back(unset_in(panel, layout, head, row));
    }
    if (layout.block <= kTileQueries) {
      plan.groups.push_back(std::move(group));
      continue;
    }
    // A block larger than a tile is a group of its own, and becomes several.
    const Slice whole = group.slices.front();
    for (Index begin = whole.begin; begin < whole.end; begin += kTileQueries) {
      group.slices = {{whole.row, begin, std::min(whole.end, begin + kTileQueries)}};
      plan.groups.push_back(group);
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
