#include "core/compression/piece_ranks.hpp"

#include <algorithm>

#include "core/compression/group_layout.hpp"
#include "core/compression/select_largest.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

GroupLayout layout_of(const capstan_compressed& piece, std::uint64_t group_size) {
  if (group_size == 0 || piece.full_numel % group_size != 0) {
    throw RuntimeFault("sum_groups: groups of " + std::to_string(group_size) + " elements do not fill parameter '" +
                       std::string(as_view(piece.name)) + "', which has " + std::to_string(piece.full_numel) + ".");
  }
  return {static_cast<std::int64_t>(piece.full_numel), static_cast<std::int64_t>(piece.full_numel / group_size)};
}

/// Adds the numbers of a range's segments to the totals of their groups; returns how many there are.
std::int64_t add_segments(const GroupLayout& layout, const Range& range, const double* partials, double* totals) {
  const std::int64_t end = range.offset + range.numel;
  std::int64_t segment = 0;
  for (std::int64_t at = range.offset; at < end;) {
    const std::int64_t group = at / layout.size();
    totals[group] += partials[segment++];
    at = std::min({(group + 1) * layout.size(), (at / Partition::kBlock + 1) * Partition::kBlock, end});
  }
  return segment;
}

void expect(bool right, const std::string& what) {
  if (!right) throw RuntimeFault(what);
}

}  // namespace

PieceRanks::PieceRanks(const std::vector<CompressedPart>& parts, Communicator* ranks, std::string step)
    : parts_(parts), ranks_(ranks), step_(std::move(step)) {}

std::vector<Range> PieceRanks::ranges_of(const capstan_compressed& piece) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const CompressedPart& part) { return part.name == as_view(piece.name); });
  expect(found != parts_.end(), "'" + std::string(as_view(piece.name)) + "' is no parameter that is compressed.");
  return found->of_ranks;
}

void PieceRanks::sum_groups(const capstan_compressed* const* pieces, std::size_t count,
                            const std::uint64_t* group_sizes, const double* const* partials,
                            double* const* totals) const {
  std::vector<GroupLayout> layouts;
  for (std::size_t i = 0; i < count; ++i) {
    layouts.push_back(layout_of(*pieces[i], group_sizes[i]));
    std::fill_n(totals[i], layouts[i].groups, 0.0);
  }
  if (ranks_ == nullptr) {
    for (std::size_t i = 0; i < count; ++i) {
      add_segments(layouts[i], {0, static_cast<std::int64_t>(pieces[i]->numel)}, partials[i], totals[i]);
    }
    return;
  }
  const auto ranks = static_cast<std::size_t>(ranks_->size());
  std::vector<std::vector<Range>> ranges;
  for (std::size_t i = 0; i < count; ++i) ranges.push_back(ranges_of(*pieces[i]));
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::int64_t segments = 0;
    for (std::size_t i = 0; i < count; ++i) segments += layouts[i].segments_in(ranges[i][rank]);
    parts.push_back(host_empty({segments}, at::kDouble));
  }
  const auto own = static_cast<std::size_t>(ranks_->rank());
  auto* mine = parts[own].mutable_data_ptr<double>();
  for (std::size_t i = 0; i < count; ++i) {
    mine = std::copy_n(partials[i], layouts[i].segments_in(ranges[i][own]), mine);
  }
  ranks_->all_gather(step_ + ", sums of groups", parts);
  // Ranks own rising ranges of a parameter.
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto* from = parts[rank].const_data_ptr<double>();
    for (std::size_t i = 0; i < count; ++i) from += add_segments(layouts[i], ranges[i][rank], from, totals[i]);
  }
}

void PieceRanks::select_largest(const capstan_tensor* parts, const std::uint32_t* sets, std::size_t part_count,
                                const std::uint64_t* k, std::size_t set_count, float* thresholds,
                                const capstan_tensor* masks) const {
  std::vector<SelectionPart> selected;
  for (std::size_t p = 0; p < part_count; ++p) {
    const at::Tensor& values = tensor_of(parts[p]);
    expect(sets[p] < set_count, "select_largest: part " + std::to_string(p) + " is of set " + std::to_string(sets[p]) +
                                    ", and there are " + std::to_string(set_count) + ".");
    expect(values.scalar_type() == at::kFloat && values.is_contiguous() && values.is_cpu(),
           "select_largest: values must be float32, contiguous, in host memory.");
    SelectionPart& one = selected.emplace_back();
    one.values = values.const_data_ptr<float>();
    one.numel = values.numel();
    one.set = sets[p];
    if (masks == nullptr || masks[p] == nullptr) continue;
    const at::Tensor& mask = tensor_of(masks[p]);
    expect(mask.scalar_type() == at::kByte && mask.is_contiguous() && mask.numel() == values.numel(),
           "select_largest: a mask must be uint8, contiguous, of as many elements as its values.");
    one.mask = mask.mutable_data_ptr<std::uint8_t>();
  }
  const std::vector<float> found =
      capstan::select_largest(selected, std::vector<std::uint64_t>(k, k + set_count), ranks_, step_);
  std::copy(found.begin(), found.end(), thresholds);
}

void PieceRanks::gather(const capstan_compressed& piece, const at::Tensor& part, const at::Tensor& whole) const {
  expect(whole.numel() == static_cast<std::int64_t>(piece.full_numel) && whole.is_contiguous() &&
             part.scalar_type() == whole.scalar_type() && part.numel() == static_cast<std::int64_t>(piece.numel),
         "gather_piece: `part` must have the piece's elements, and `whole` all of the parameter's, of one dtype.");
  if (ranks_ == nullptr) {
    at::Tensor to = whole.view({-1});
    to.copy_(part.view({-1}));
    return;
  }
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges_of(piece)) parts.push_back(whole.view({-1}).narrow(0, range.offset, range.numel));
  parts[static_cast<std::size_t>(ranks_->rank())].copy_(part.view({-1}));
  ranks_->all_gather(step_ + ", gathered '" + std::string(as_view(piece.name)) + "'", parts);
}

}  // namespace capstan
