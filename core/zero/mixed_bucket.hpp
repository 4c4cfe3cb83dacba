#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// How the gradient of a parameter travels between the ranks.
struct GradientTransport {
  at::ScalarType type = at::kFloat;
  /// Elements of a row; 0: the gradient travels as a whole. Above 0 only rows that are not all zero travel, each with
  /// its index, and every rank gets every row.
  std::int64_t row = 0;
  bool operator==(const GradientTransport&) const = default;
};

/// A bucket whose gradients do not all travel alike.
class MixedBucket {
 public:
  /// `transports`: one for each parameter.
  MixedBucket(const Partition& partition, const Bucket& bucket, const std::vector<GradientTransport>& transports);

  /// Replaces `values`, the bucket's elements, by the sums over ranks times `factor`, rounded to the type in which they
  /// travelled: all elements, or without `everywhere` those that this rank owns. An element's sum is that of a bucket
  /// which travels as one: in rank order, in fp32.
  void average(Communicator& communicator, const std::string& name, at::Tensor values, double factor,
               bool everywhere) const;

 private:
  struct Stretch {
    std::int64_t first, numel;  // in the bucket
  };
  struct Kind {
    at::ScalarType type;
    std::vector<std::vector<Stretch>> of_rank;  // what each rank owns
  };
  struct Rows {
    Stretch where;
    GradientTransport transport;
    std::size_t parameter;
  };

  std::vector<Kind> kinds_;
  std::vector<Rows> rows_;
};

}  // namespace capstan
