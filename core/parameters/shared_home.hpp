#pragma once

#include <vector>

#include "core/parameters/parameter_home.hpp"

namespace capstan {

/// The part that FlatHome and PartitionedHome have in common: each rank updates its part of every parameter.
class SharedHome : public ParameterHome {
 public:
  /// `sharding` must outlive this.
  explicit SharedHome(Sharding& sharding) : sharding_(sharding) {}

  bool partitioned() const override { return true; }
  int ranks() const override { return sharding_.communicator().size(); }
  Range updated(std::size_t i, std::int64_t) const override { return sharding_.updated(i); }
  std::vector<Range> updated_by_ranks(std::size_t i) const override {
    std::vector<Range> ranges;
    for (int rank = 0; rank < ranks(); ++rank) ranges.push_back(sharding_.updated(i, rank));
    return ranges;
  }

 protected:
  Sharding& sharding_;
};

}  // namespace capstan
