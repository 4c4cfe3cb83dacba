// The layouts of DeepSpeed's sparse_attention. Rows are blocks of queries, columns blocks of keys.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/attention.hpp"
#include "capstan/sdk/random.hpp"

namespace {

using capstan::sdk::AttentionCells;
using capstan::sdk::AttentionFacts;
using capstan::sdk::AttentionShape;
using capstan::sdk::Error;
using capstan::sdk::Host;
using capstan::sdk::Params;
using Index = std::uint32_t;

Index index_of(const Params& params, const char* key) {
  // What no sequence has is as good as the largest number.
  return static_cast<Index>(std::min<std::int64_t>(params.integer(key), UINT32_MAX / 2));
}

/// Throws where a sequence has fewer blocks than a key wants.
void require_blocks(const char* key, Index wanted, const AttentionShape& shape) {
  if (wanted <= shape.blocks) return;
  throw Error(std::string(key) + ": " + std::to_string(wanted) + " is above the " + std::to_string(shape.blocks) +
              " blocks of a sequence. Lower it, or train on longer sequences.");
}

/// What all but `dense` have.
class Family {
 public:
  explicit Family(const Params& params)
      : block_(index_of(params, "block")),
        per_head_(params.boolean("different_layout_per_head")),
        causal_(params.text("attention") == "unidirectional") {}

  AttentionFacts facts() const { return {block_, causal_}; }

 protected:
  bool causal() const { return causal_; }
  bool per_head() const { return per_head_; }
  /// Calls fill(head) for each head that has a layout of its own.
  template <class Fill>
  void for_each_head(const AttentionShape& shape, AttentionCells& cells, const Fill& fill) const {
    for (Index head = 0; head < (per_head_ ? shape.heads : 1); ++head) fill(head);
    if (!per_head_) cells.copy_first_head();
  }
  void set_columns(AttentionCells& cells, Index head, Index begin, Index end) const {
    for (Index row = causal_ ? begin : 0; row < cells.blocks(); ++row) {
      for (Index column = begin; column < end; ++column) cells.set(head, row, column);
    }
  }
  static void set_rows(AttentionCells& cells, Index head, Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      for (Index column = 0; column < cells.blocks(); ++column) cells.set(head, row, column);
    }
  }
  void set_window(AttentionCells& cells, Index head, Index begin, Index end) const {
    for (Index row = begin; row < end; ++row) {
      for (Index column = begin; column < (causal_ ? row + 1 : end); ++column) cells.set(head, row, column);
    }
  }
  static void set_sliding_window(AttentionCells& cells, Index head, Index width) {
    const Index side = width / 2, blocks = cells.blocks();
    for (Index row = 0; row < blocks; ++row) {
      for (Index column = row - std::min(side, row); column < std::min(row + side + 1, blocks); ++column) {
        cells.set(head, row, column);
      }
    }
  }
  /// `count` different columns of each row, of those up to the row itself where attention is causal; fewer where the
  /// row has fewer. A set of so many, each as likely as any other (Floyd's algorithm; Bentley, Communications of the
  /// ACM 30(9), 1987).
  void set_random(const AttentionShape& shape, AttentionCells& cells, Index head, Index count) const {
    const capstan::sdk::RandomStream random(shape.seed, "sparse_attention");
    std::vector<Index> chosen;
    for (Index row = 0; row < shape.blocks; ++row) {
      const Index of = causal_ ? row + 1 : shape.blocks;
      chosen.clear();
      for (Index last = of - std::min(count, of); last < of; ++last) {
        const auto column = static_cast<Index>(random.below(last + 1, head, row, last));
        const bool taken = std::find(chosen.begin(), chosen.end(), column) != chosen.end();
        chosen.push_back(taken ? last : column);
        cells.set(head, row, chosen.back());
      }
    }
  }
  /// Cells above the diagonal are left out where attention is causal.
  void keep_causal(AttentionCells& cells, Index head) const {
    if (!causal_) return;
    for (Index row = 0; row < cells.blocks(); ++row) {
      for (Index column = row + 1; column < cells.blocks(); ++column) cells.set(head, row, column, false);
    }
  }

 private:
  Index block_;
  bool per_head_, causal_;
};

/// global_block_indices and global_block_end_indices: single blocks, or ranges.
class GlobalBlocks {
 public:
  explicit GlobalBlocks(const Params& params) {
    const std::vector<double> starts = params.numbers("global_block_indices");
    const std::vector<double> ends = params.numbers("global_block_end_indices");
    params.require(ends.empty() || ends.size() == starts.size(), "global_block_end_indices",
                   "must have as many entries as global_block_indices.");
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const double end = ends.empty() ? starts[i] + 1 : ends[i];
      params.require(end > starts[i], "global_block_end_indices", "each must be above its start.");
      ranges_.emplace_back(as_index(starts[i]), as_index(end));
    }
  }
  /// Calls use(begin, end) for the ranges that begin within so many blocks.
  template <class Use>
  void for_each(Index blocks, const Use& use) const {
    for (const auto& [begin, end] : ranges_) {
      if (begin < blocks) use(begin, std::min(end, blocks));
    }
  }

 private:
  static Index as_index(double value) { return static_cast<Index>(std::min(value, double{UINT32_MAX / 2})); }
  std::vector<std::pair<Index, Index>> ranges_;
};

void require_bidirectional(const Params& params) {
  params.require(!params.boolean("horizontal_global_attention") || params.text("attention") == "bidirectional",
                 "horizontal_global_attention", "needs bidirectional attention.");
}

class Dense {
 public:
  Dense(Host, const Params& params) : block_(index_of(params, "block")) {}
  AttentionFacts facts() const { return {block_, false}; }
  void layout(const AttentionShape& shape, AttentionCells& cells) const {
    for (Index row = 0; row < shape.blocks; ++row) {
      for (Index column = 0; column < shape.blocks; ++column) cells.set(0, row, column);
    }
    cells.copy_first_head();
  }

 private:
  Index block_;
};

/// Child, Gray, Radford, Sutskever: Generating Long Sequences with Sparse Transformers, arXiv 1904.10509, section 4.2.
class Fixed : public Family {
 public:
  Fixed(Host, const Params& params)
      : Family(params),
        local_(index_of(params, "num_local_blocks")),
        global_(index_of(params, "num_global_blocks")),
        patterns_(index_of(params, "num_different_global_patterns")),
        horizontal_(params.boolean("horizontal_global_attention")) {
    params.require(local_ % global_ == 0, "num_local_blocks", "must be a multiple of num_global_blocks.");
    params.require(patterns_ <= local_ / global_, "num_different_global_patterns",
                   "must not be above num_local_blocks / num_global_blocks.");
    params.require(patterns_ == 1 || per_head(), "num_different_global_patterns",
                   "above 1 needs different_layout_per_head.");
    require_bidirectional(params);
  }
  void layout(const AttentionShape& shape, AttentionCells& cells) const {
    if (patterns_ > shape.heads) {
      throw Error("num_different_global_patterns: " + std::to_string(patterns_) + " is above the " +
                  std::to_string(shape.heads) + " heads of the model.");
    }
    for_each_head(shape, cells, [&](Index head) {
      for (Index begin = 0; begin < shape.blocks; begin += local_) {
        set_window(cells, head, begin, std::min(begin + local_, shape.blocks));
      }
      const Index first = local_ - (1 + head % patterns_) * global_, whole = shape.blocks - shape.blocks % local_;
      for (Index window = 0; window < whole; window += local_) set_global(cells, head, window + first);
      // The last window, where it is short.
      if (whole < shape.blocks)
        set_global(cells, head, std::min(whole + first, shape.blocks - std::min(global_, shape.blocks)));
    });
  }

 private:
  void set_global(AttentionCells& cells, Index head, Index begin) const {
    const Index end = std::min(begin + global_, cells.blocks());
    set_columns(cells, head, begin, end);
    if (horizontal_) set_rows(cells, head, begin, end);
  }

  Index local_, global_, patterns_;
  bool horizontal_;
};

class Variable : public Family {
 public:
  Variable(Host, const Params& params)
      : Family(params),
        random_(index_of(params, "num_random_blocks")),
        globals_(params),
        horizontal_(params.boolean("horizontal_global_attention")) {
    for (const double size : params.numbers("local_window_blocks")) {
      windows_.push_back(static_cast<Index>(std::min(size, double{UINT32_MAX / 2})));
    }
    params.require(!windows_.empty(), "local_window_blocks", "needs a size.");
    require_bidirectional(params);
  }
  void layout(const AttentionShape& shape, AttentionCells& cells) const {
    require_blocks("num_random_blocks", random_, shape);
    for_each_head(shape, cells, [&](Index head) {
      set_random(shape, cells, head, random_);
      std::size_t size = 0;
      for (Index begin = 0, end = 0; begin < shape.blocks; begin = end) {
        end = std::min(begin + windows_[size], shape.blocks);
        set_window(cells, head, begin, end);
        size = std::min(size + 1, windows_.size() - 1);
      }
      globals_.for_each(shape.blocks, [&](Index begin, Index end) {
        set_columns(cells, head, begin, end);
        if (horizontal_) set_rows(cells, head, begin, end);
      });
    });
  }

 private:
  Index random_;
  std::vector<Index> windows_;
  GlobalBlocks globals_;
  bool horizontal_;
};

/// Zaheer et al.: Big Bird: Transformers for Longer Sequences, arXiv 2007.14062, section 2 and appendix D, with the
/// first blocks as global ones (ITC).
class BigBird : public Family {
 public:
  BigBird(Host, const Params& params)
      : Family(params),
        random_(index_of(params, "num_random_blocks")),
        window_(index_of(params, "num_sliding_window_blocks")),
        global_(index_of(params, "num_global_blocks")) {}
  void layout(const AttentionShape& shape, AttentionCells& cells) const {
    require_blocks("num_random_blocks", random_, shape);
    require_blocks("num_sliding_window_blocks", window_, shape);
    require_blocks("num_global_blocks", global_, shape);
    for_each_head(shape, cells, [&](Index head) {
      set_random(shape, cells, head, random_);
      set_sliding_window(cells, head, window_);
      set_columns(cells, head, 0, global_);
      set_rows(cells, head, 0, global_);
      keep_causal(cells, head);
    });
  }

 private:
  Index random_, window_, global_;
};

/// Beltagy, Peters, Cohan: Longformer: The Long-Document Transformer, arXiv 2004.05150, section 3.1, in blocks.
class BSLongformer : public Family {
 public:
  BSLongformer(Host, const Params& params)
      : Family(params), window_(index_of(params, "num_sliding_window_blocks")), globals_(params) {}
  void layout(const AttentionShape& shape, AttentionCells& cells) const {
    require_blocks("num_sliding_window_blocks", window_, shape);
    for_each_head(shape, cells, [&](Index head) {
      set_sliding_window(cells, head, window_);
      globals_.for_each(shape.blocks, [&](Index begin, Index end) {
        set_columns(cells, head, begin, end);
        set_rows(cells, head, begin, end);
      });
      keep_causal(cells, head);
    });
  }

 private:
  Index window_;
  GlobalBlocks globals_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::attention<Dense, "dense">, &capstan::sdk::attention<Fixed, "fixed">,
               &capstan::sdk::attention<Variable, "variable">, &capstan::sdk::attention<BigBird, "bigbird">,
               &capstan::sdk::attention<BSLongformer, "bslongformer">)
