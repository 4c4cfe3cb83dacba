#include "core/tuning/micro_batches.hpp"

#include <algorithm>

namespace capstan {

std::array<double, 4> estimated_bytes(const ModelEstimate& model) {
  const auto count = static_cast<double>(model.parameters), devices = static_cast<double>(model.devices);
  const double parameters = count * (model.half ? 2 : 4), gradients = parameters;
  const double optimizer = count * (model.half ? 16 : 8);
  std::array<double, 4> bytes{};
  for (int stage = 0; stage <= 3; ++stage) {
    bytes[static_cast<std::size_t>(stage)] =
        (optimizer / (stage >= 1 ? devices : 1) + gradients / (stage >= 2 ? devices : 1) +
         parameters / (stage >= 3 ? devices : 1)) /
        model.model_parallel;
  }
  return bytes;
}

std::vector<std::int64_t> micro_batch_list(std::int64_t least, std::int64_t most, std::int64_t count,
                                           std::int64_t budget) {
  const std::int64_t low = std::max(least, most / 2);
  const std::int64_t stride = std::max<std::int64_t>(1, (most - low) / count);
  std::vector<std::int64_t> list;
  for (std::int64_t size = low; size < most; size += stride) {
    if (budget / size != budget / most) list.push_back(size);
  }
  list.push_back(most);
  return list;
}

LargestMicroBatch largest_micro_batch_that_pays(const std::vector<std::int64_t>& steps, double gain,
                                                const std::function<std::optional<double>(std::int64_t)>& rate,
                                                const std::function<bool()>& stop) {
  LargestMicroBatch best;
  // Whether `size` ran, and what it brought.
  const auto pays = [&](std::int64_t size) -> std::optional<bool> {
    const std::optional<double> found = rate(size);
    if (!found) return std::nullopt;
    const bool pays = *found > (1 + gain) * best.rate;
    if (*found > best.rate) {
      best.size = size;
      best.rate = *found;
    }
    return pays;
  };
  std::int64_t runs = 0;
  for (const std::int64_t size : steps) {
    const std::optional<bool> paid = pays(size);
    if (stop() || (paid && !*paid)) return best;
    if (paid) {
      runs = size;
      continue;
    }
    best.bounded = true;
    for (std::int64_t fails = size; runs > 0 && fails - runs > std::max<std::int64_t>(1, runs / 8);) {
      const std::int64_t middle = runs + (fails - runs) / 2;
      const std::optional<bool> middle_paid = pays(middle);
      if (stop() || (middle_paid && !*middle_paid)) break;
      (middle_paid ? runs : fails) = middle;
    }
    return best;
  }
  return best;
}

std::int64_t device_budget(std::int64_t most, std::int64_t accumulation, std::optional<std::int64_t> max_train_batch,
                           int devices, int model_parallel) {
  if (max_train_batch) return std::max<std::int64_t>(1, *max_train_batch * model_parallel / devices);
  return std::max<std::int64_t>(1, most * accumulation / model_parallel);
}

ActivationBytes activation_line(std::int64_t first, double bytes_of_first, std::int64_t second,
                                double bytes_of_second) {
  const double slope = std::max(0.0, (bytes_of_second - bytes_of_first) / static_cast<double>(second - first));
  return {std::max(0.0, bytes_of_first - slope * static_cast<double>(first)), slope};
}

}  // namespace capstan
