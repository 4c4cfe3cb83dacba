#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/comm/communicator.hpp"
#include "core/parameters/compressed_part.hpp"

namespace capstan {

/// What compressions find out together about pieces of parameters: behind the functions of capstan_host that are for
/// them. [engine, every rank]
class PieceRanks {
 public:
  /// `ranks`: where they update parts, which `parts` tells; null: this process has all of every parameter. Both must
  /// outlive this. `step` names the collectives.
  PieceRanks(const std::vector<CompressedPart>& parts, Communicator* ranks, std::string step);

  /// As capstan_host.sum_groups. Throws RuntimeFault.
  void sum_groups(const capstan_compressed* const* pieces, std::size_t count, const std::uint64_t* group_sizes,
                  const double* const* partials, double* const* totals) const;
  /// As capstan_host.select_largest. Throws RuntimeFault.
  void select_largest(const capstan_tensor* parts, const std::uint32_t* sets, std::size_t part_count,
                      const std::uint64_t* k, std::size_t set_count, float* thresholds,
                      const capstan_tensor* masks) const;
  /// As capstan_host.gather_piece. Throws RuntimeFault.
  void gather(const capstan_compressed& piece, const at::Tensor& part, const at::Tensor& whole) const;

 private:
  /// What each rank updates of a piece's parameter.
  std::vector<Range> ranges_of(const capstan_compressed& piece) const;

  const std::vector<CompressedPart>& parts_;
  Communicator* ranks_;
  std::string step_;
};

}  // namespace capstan
