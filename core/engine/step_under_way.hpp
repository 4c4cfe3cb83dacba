#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/memory/sum_of_squares.hpp"

namespace capstan {

/// The loss of a micro-batch.
struct NotedLoss {
  double value = 0;
  at::Tensor on_device;  // defined: a double that was not read yet, where the device has it
};

/// A rank whose loss was infinite or NaN, and its first such micro-batch.
struct BadLoss {
  int rank = 0;
  std::int64_t micro_step = 0;
};

/// "micro-batch 2" of a single process; "micro-batch 2 of rank 1, micro-batch 0 of rank 3" of several, at most three by
/// name.
std::string text_of(const std::vector<BadLoss>& bad, int ranks);

/// What an engine knows of the step under way, from its first forward to the end of step(). A fresh one is a step that
/// has not begun.
struct StepUnderWay {
  std::int64_t micro_step = 0;       // micro-batches that have had their backward
  std::int64_t dropped = 0;          // of these, those whose gradients zero_grad() has dropped
  std::int64_t passes = 0;           // passes that train since the last backward
  std::vector<NotedLoss> losses;     // of the micro-batches that are not in loss_sum yet
  double loss_sum = 0;               // the sum of the losses that were read
  bool loss_finite = true;           // no loss of this rank was infinite or NaN
  std::int64_t bad_micro_step = 0;   // this rank's first micro-batch whose loss was not finite
  std::vector<BadLoss> bad_losses;   // of all ranks, once they have agreed on the step
  bool overflow = false;             // a gradient is not finite: the loss scale is to fall
  const char* unfinished = nullptr;  // "backward" or "update": has begun, and not ended
  bool local_gradients = false;      // the optimizer exchanges this step's gradients by itself
  SumOfSquares squares;              // taken over the step's mean gradients, when it needs their norm
};

/// What every rank tells the others at the end of a step.
struct RankReport {
  double loss_sum = 0;
  bool loss_finite = true;
  std::int64_t bad_micro_step = 0;
  bool stop_asked = false;
  bool snapshot_due = false;   // of rank 0: all are to begin a snapshot after this step
  bool snapshot_lost = false;  // this rank's part of the last snapshot is not sealed, and will not be

  std::vector<double> pack() const {
    const int flags = (stop_asked ? 1 : 0) + (snapshot_due ? 2 : 0) + (snapshot_lost ? 4 : 0);
    return {loss_sum, loss_finite ? 1.0 : 0.0, static_cast<double>(bad_micro_step), static_cast<double>(flags)};
  }
  static RankReport unpack(const std::vector<double>& numbers) {
    const int flags = static_cast<int>(numbers.at(3));
    return {numbers.at(0),    numbers.at(1) != 0, static_cast<std::int64_t>(numbers.at(2)),
            (flags & 1) != 0, (flags & 2) != 0,   (flags & 4) != 0};
  }
};

}  // namespace capstan
