#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/sum_of_squares.hpp"
#include "core/zero/gradient_store.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// Which mean gradients are kept outside memory.
struct GradientsOnStore {
  GradientStore* store = nullptr;  // must outlive the user
  std::vector<bool> stored;        // one a trained parameter; empty: none is
};

/// From stage 2 on: the mean gradients of what this rank owns, in one piece of memory but for those that go to a store.
/// Where they go is no memory of theirs, so that their squares are taken on the way.
class OwnedGradients {
 public:
  /// `memory`: dtype and device of what is kept.
  OwnedGradients(const Partition& partition, int rank, const at::TensorOptions& memory, GradientsOnStore stored);

  bool stored(std::size_t i) const { return on_store_.stored[i]; }
  /// Takes the mean of this rank's part of a bucket, which may be written to; `add`: to what is kept. `squares`: the
  /// gradients are complete with it.
  void keep_bucket(std::size_t bucket, const at::Tensor& mean, bool add, bool squares);
  /// The same for the part of parameter i, one dimension.
  void keep(std::size_t i, const at::Tensor& mean, bool add, bool squares);
  /// Makes the gradient of parameter i, which this step has none of, zero; where it is on a store, for its squares
  /// alone.
  void clear(std::size_t i);
  /// Takes the squares of a gradient that was complete before keep() was told so.
  void measure(std::size_t i);

  /// The gradient of this rank's part of parameter i, one dimension; undefined where it is on a store.
  at::Tensor gradient(std::size_t i) const;
  /// The squares of each block of a gradient that is on a store.
  const std::vector<SumOfSquares>& squares(std::size_t i) const { return squares_[i]; }

 private:
  /// Elements of this rank's part of a bucket that lie together in memory.
  struct Stretch {
    std::int64_t from, numel, to;
  };
  struct Part {
    Range range;            // of the parameter
    std::int64_t from = 0;  // in this rank's part of the bucket
    std::int64_t to = 0;    // in memory_
  };
  void place(std::size_t i, std::int64_t from, std::vector<Stretch>& stretches, std::int64_t& elements);
  void send(std::size_t i, at::Tensor values, bool add, bool squares);

  GradientsOnStore on_store_;
  std::vector<Part> parts_;
  std::vector<std::vector<Stretch>> stretches_;      // of each bucket
  std::vector<std::vector<std::size_t>> stored_in_;  // of each bucket: parameters with a part that is stored
  std::vector<std::vector<SumOfSquares>> squares_;   // of the stored gradients
  at::Tensor memory_;
};

}  // namespace capstan
