#include "plugins/optimizers/muon/matrix_product.hpp"

#include <algorithm>
#include <cstdint>

#include "capstan/sdk/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/muon/matrix_product.cpp"
#include <hwy/foreach_target.h>

#include "capstan/sdk/elements/halves-inl.h"

#ifndef CAPSTAN_OPTIMIZERS_MUON_PANEL
#define CAPSTAN_OPTIMIZERS_MUON_PANEL
namespace capstan::optimizers {

constexpr std::size_t kPanel = 32;  // columns of b that are multiplied together

/// A panel of b, its rows one after the other, against all rows of a.
struct PanelProduct {
  const Matrix& a;
  const float* panel;
  float scale;
  const Matrix* added;
  float added_scale;
  Matrix& to;
  std::size_t first_column;
};

}  // namespace capstan::optimizers
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {
using namespace elements::HWY_NAMESPACE;

constexpr std::size_t kVectors = kPanel / HWY_LANES(float) > 0 ? kPanel / HWY_LANES(float) : 1;
constexpr std::size_t kRows = kVectors >= 12 ? 1 : 12 / kVectors;  // sums that fit into registers

/// kCount rows of a from `row` on: one fused multiply-add an element of a's row, in order.
template <std::size_t kCount>
HWY_INLINE void multiply_rows(const PanelProduct& work, std::size_t row) {
  const Tag d;
  Lanes sums[kCount][kVectors];
  HWY_UNROLL(12)
  for (std::size_t r = 0; r < kCount; ++r) {
    HWY_UNROLL(32)
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const float* panel = work.panel;
  const float* from = work.a.row(row);
  for (std::size_t k = 0; k < work.a.columns; ++k, panel += kPanel) {
    HWY_UNROLL(12)
    for (std::size_t r = 0; r < kCount; ++r) {
      const Lanes factor = hn::Set(d, from[r * work.a.columns + k]);
      HWY_UNROLL(32)
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(factor, hn::LoadU(d, panel + v * hn::Lanes(d)), sums[r][v]);
      }
    }
  }
  const std::size_t count = std::min(kPanel, work.to.columns - work.first_column);
  float line[kPanel];
  HWY_UNROLL(12)
  for (std::size_t r = 0; r < kCount; ++r) {
    HWY_UNROLL(32)
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, line + v * hn::Lanes(d));
    float* to = work.to.row(row + r) + work.first_column;
    const float* added = work.added ? work.added->row(row + r) + work.first_column : nullptr;
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = work.scale * line[i] + (added ? work.added_scale * added[i] : 0.0f);
    }
  }
}

void multiply_panel(const PanelProduct& work) {
  std::size_t row = 0;
  for (; row + kRows <= work.a.rows; row += kRows) multiply_rows<kRows>(work, row);
  for (; row < work.a.rows; ++row) multiply_rows<1>(work, row);
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {
namespace {

HWY_EXPORT(multiply_panel);

void multiply_panel(const PanelProduct& work) { HWY_DYNAMIC_DISPATCH(multiply_panel)(work); }

constexpr std::size_t kTile = 32;  // rows and columns that are transposed while they are in the cache

/// Columns [first, first + kPanel) of b, row after row, zeros where there are none.
void pack(const Matrix& b, std::size_t first, float* panel) {
  const std::size_t count = std::min(kPanel, b.columns - first);
  for (std::size_t k = 0; k < b.rows; ++k, panel += kPanel) {
    std::copy_n(b.row(k) + first, count, panel);
    std::fill(panel + count, panel + kPanel, 0.0f);
  }
}

}  // namespace

Matrix Matrix::transposed() const {
  Matrix to(columns, rows);
  const auto tiles = static_cast<std::int64_t>((rows + kTile - 1) / kTile);
  sdk::parallel_for(0, tiles, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t first = static_cast<std::size_t>(begin) * kTile; first < static_cast<std::size_t>(end) * kTile;
         first += kTile) {
      const std::size_t last = std::min(first + kTile, rows);
      for (std::size_t c = 0; c < columns; ++c) {
        for (std::size_t r = first; r < last; ++r) to.row(c)[r] = row(r)[c];
      }
    }
  });
  return to;
}

Matrix product(const Matrix& a, const Matrix& b, float product_scale, const Matrix* added, float added_scale) {
  Matrix to(a.rows, b.columns);
  const std::size_t panels = (b.columns + kPanel - 1) / kPanel, panel_size = b.rows * kPanel;
  std::vector<float> packed(panels * panel_size);
  sdk::parallel_for(0, static_cast<std::int64_t>(panels), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto p = static_cast<std::size_t>(begin); p < static_cast<std::size_t>(end); ++p) {
      float* panel = packed.data() + p * panel_size;
      pack(b, p * kPanel, panel);
      multiply_panel({a, panel, product_scale, added, added_scale, to, p * kPanel});
    }
  });
  return to;
}

}  // namespace capstan::optimizers
#endif
