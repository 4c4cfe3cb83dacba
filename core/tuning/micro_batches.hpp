#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace capstan {

/// What DeepSpeed's autotuner knows of a model: enough where a program brings its own.
struct ModelEstimate {
  std::int64_t parameters = 0;
  bool half = false;  // fp16 or bf16
  int devices = 1;    // of a trial
  int model_parallel = 1;
};

/// Bytes of a device at stages 0 to 3, by DeepSpeed's rule: parameters and gradients of 2 or 4 bytes, optimizer states
/// of 16 or 8, the optimizer divided by the devices from stage 1, gradients from stage 2, parameters at stage 3.
/// Without activations.
std::array<double, 4> estimated_bytes(const ModelEstimate& model);

/// The micro-batches to try when the largest is known: from max / 2 in equal strides to max, those whose accumulation
/// differs from that of max. `budget`: samples of a step on one device.
std::vector<std::int64_t> micro_batch_list(std::int64_t least, std::int64_t most, std::int64_t count,
                                           std::int64_t budget);

struct LargestMicroBatch {
  std::int64_t size = 0;  // 0: none ran
  double rate = 0;
  bool bounded = false;  // a larger one did not run
};

/// Climbs `steps`, which ascend, for as long as each runs and is faster than the best before it by more than the share
/// `gain`. Where a step does not run, bisects between the last that did and this one, to an eighth of the former, and
/// ends earlier where a size in between brings less than `gain`. `rate`: samples a second at a size; none where it does
/// not fit or fails. `stop`: asked after every call of `rate`.
LargestMicroBatch largest_micro_batch_that_pays(const std::vector<std::int64_t>& steps, double gain,
                                                const std::function<std::optional<double>(std::int64_t)>& rate,
                                                const std::function<bool()>& stop);

/// Samples of a step on one device: what `max_train_batch_size` leaves for it, else the largest micro-batch with the
/// configuration's accumulation.
std::int64_t device_budget(std::int64_t most, std::int64_t accumulation, std::optional<std::int64_t> max_train_batch,
                           int devices, int model_parallel);

/// Bytes that a micro-batch needs: `fixed` and so many for each sample.
struct ActivationBytes {
  double fixed = 0, per_sample = 0;
  double at(std::int64_t micro_batch) const { return fixed + per_sample * static_cast<double>(micro_batch); }
};
/// The line through two measurements; never falling.
ActivationBytes activation_line(std::int64_t first, double bytes_of_first, std::int64_t second, double bytes_of_second);

}  // namespace capstan
