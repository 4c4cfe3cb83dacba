#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/zero/block_format.hpp"

namespace capstan {

/// Communicator::all_gather with 8-bit codes on the way (ZeRO++, zero_quantized_weights): pieces[i][r] is rank r's part
/// of parameter i, contiguous, of float32, bfloat16 or float16. Codes are made from fp32 values.
///
/// Afterwards every rank holds the same: what the codes stand for, its own part included, so that one must be a copy of
/// what the rank keeps. Where ZeRO++ quantises equal slices of a parameter, each rank's part is quantised by itself
/// here; parts that weight_format() gives no block travel as they are. Nothing changes with a single rank. [engine]
///
/// `codes[i]`, where it is given and defined: what weight_codes() gave for this rank's part of parameter i, which is
/// then not read.
void quantized_all_gather(Communicator& communicator, const std::string& name,
                          const std::vector<std::vector<at::Tensor>>& pieces,
                          const std::vector<at::Tensor>& codes = {});

/// Scales and 8-bit codes of a part as they are sent, bytes on the part's device; undefined where weight_format() gives
/// it no block.
at::Tensor weight_codes(const at::Tensor& part);
/// Fills a part, contiguous, of float32, bfloat16 or float16, with the values that its codes, on its device, stand for.
void decode_weights(const at::Tensor& codes, at::Tensor part);

/// Error feedback of quantised gradients: what one quantisation lost is added to the next one's input (LoCo).
struct ErrorFeedback {
  double beta = 0.8;                // zeropp_loco_param.err_beta: e := beta e + (1 - beta)(x + e - x')
  std::int64_t reset_every = 1024;  // calls; then all errors are forgotten
};

/// Communicator::reduce_scatter with 4-bit codes on the way (ZeRO++, zero_quantized_gradients), in two steps: within
/// each node, whose sums are quantised anew, then between the nodes' ranks of equal place. Ranks of a node follow one
/// another. One object a bucket, because it keeps the bucket's errors. [engine]
///
/// Otherwise than ZeRO++: the sum is the whole sum, so that dividing it by the number of ranks gives the mean (there
/// the sum within a node is left undivided); sums are fp32; a bucket's parts are quantised range by range rather than
/// tensor by tensor, see gradient_block().
class QuantizedReduceScatter {
 public:
  /// `ranges[r]`: of rank r's part, the same on all ranks. `ranks_per_node` must divide the number of ranks.
  QuantizedReduceScatter(std::shared_ptr<Communicator> communicator, int ranks_per_node,
                         std::vector<std::vector<GradientRange>> ranges,
                         std::optional<ErrorFeedback> feedback = std::nullopt);

  /// parts[r]: what this rank adds to the sum of rank r, contiguous, one dimension, float32, bfloat16 or float16.
  /// Returns the sum over ranks of parts[rank()], float32. What is not quantised is exact but for its dtype.
  at::Tensor reduce(const std::string& name, const std::vector<at::Tensor>& parts);

  /// The next call starts without errors.
  void forget_errors() { calls_ = 0; }
  /// Bytes of stored errors.
  std::int64_t error_bytes() const;

 private:
  /// The quantised elements of a part, range after range, with the scales of all of them before the codes of all.
  struct Part {
    std::vector<BlockFormat> formats;
    std::int64_t numel = 0, blocks = 0, bytes = 0;  // sizes of the message
  };
  /// 8-bit codes of the errors of one part.
  struct Errors {
    at::Tensor scales, codes;  // undefined until the first quantisation
  };

  Part& part(int node, int place) { return parts_[static_cast<std::size_t>(node * per_node_ + place)]; }
  at::Tensor quantized_elements(std::size_t rank, const at::Tensor& values) const;
  template <class Use>
  void for_each_format(const Part& part, const at::Tensor& message, const at::Tensor& values, Use&& use) const;
  void encode(const Part& part, const at::Tensor& values, Errors& errors, const at::Tensor& message) const;
  void add(const Part& part, const at::Tensor& message, const at::Tensor& sum) const;
  at::Tensor within_node(const std::string& name, const std::vector<at::Tensor>& parts);
  at::Tensor between_nodes(const std::string& name, const at::Tensor& sums);

  std::shared_ptr<Communicator> communicator_;
  int per_node_, nodes_, node_, place_;
  std::vector<std::vector<GradientRange>> ranges_;
  std::vector<Part> parts_;  // one a rank
  std::optional<ErrorFeedback> feedback_;
  std::vector<Errors> first_, second_;  // the first step's, one a rank; the second step's, one a node
  std::int64_t calls_ = 0;
};

}  // namespace capstan
