#include "core/config/resolve/elastic.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// Numbers with more divisors than any smaller one, as DeepSpeed lists them.
constexpr std::array<std::int64_t, 38> kHighlyComposite = {
    1,     2,     4,     6,      12,     24,     36,     48,     60,     120,    180,    240,   360,
    720,   840,   1260,  1680,   2520,   5040,   7560,   10080,  15120,  20160,  25200,  27720, 45360,
    50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

struct Choice {
  std::int64_t batch = 0;
  std::vector<std::int64_t> sizes;
  bool is_for_one_size = false;
};

/// The least common multiple, or nothing when it is above the limit.
std::optional<std::int64_t> common_multiple(const std::vector<std::int64_t>& numbers, std::int64_t limit) {
  std::int64_t multiple = 1;
  for (const std::int64_t number : numbers) {
    const std::int64_t factor = number / std::gcd(multiple, number);
    if (multiple > limit / factor) return std::nullopt;
    multiple *= factor;
  }
  return multiple;
}

std::set<std::int64_t> candidate_batches(std::vector<std::int64_t> bases, std::int64_t limit) {
  if (const auto multiple = common_multiple(bases, limit)) bases.push_back(*multiple);
  std::set<std::int64_t> candidates;
  for (const std::int64_t base : bases) {
    if (base > limit) continue;
    const auto above = std::upper_bound(kHighlyComposite.begin(), kHighlyComposite.end(), limit / base);
    candidates.insert(base * *std::prev(above));
  }
  return candidates;
}

std::vector<std::int64_t> valid_sizes(std::int64_t batch, const std::vector<std::int64_t>& micro_batches,
                                      std::int64_t low, std::int64_t high) {
  std::set<std::int64_t> sizes;
  const auto add = [&](std::int64_t size) {
    if (size >= low && size <= high) sizes.insert(size);
  };
  for (const std::int64_t micro : micro_batches) {
    if (batch % micro != 0) continue;
    const std::int64_t steps = batch / micro;
    for (std::int64_t divisor = 1; divisor * divisor <= steps; ++divisor) {
      if (steps % divisor != 0) continue;
      add(divisor);
      add(steps / divisor);
    }
  }
  return {sizes.begin(), sizes.end()};
}

Choice choose(const ElasticityConfig& settings, std::int64_t limit, std::int64_t low, std::int64_t high) {
  Choice best{*std::min_element(settings.micro_batches.begin(), settings.micro_batches.end()), {}};
  for (const std::int64_t batch : candidate_batches(settings.micro_batches, limit)) {
    auto sizes = valid_sizes(batch, settings.micro_batches, low, high);
    const bool preferred = settings.prefer_larger ? batch > best.batch : batch < best.batch;
    const bool as_many = !sizes.empty() && sizes.size() == best.sizes.size();
    if (sizes.size() > best.sizes.size() || (as_many && preferred)) best = {batch, std::move(sizes)};
  }
  return best;
}

/// Version 0.2 counts nodes; when the current number of devices fits none of its batches, it serves that number alone.
Choice choose_by_nodes(const ElasticityConfig& settings, std::int64_t devices) {
  const std::int64_t ranks_per_node = settings.devices_per_node / settings.model_parallel;
  const std::int64_t limit = settings.max_batch / ranks_per_node;
  const auto [smallest, largest] = std::minmax_element(settings.micro_batches.begin(), settings.micro_batches.end());
  if (*largest > limit) {
    throw ConfigError(
        "elasticity.micro_batch_sizes: " + std::to_string(*largest) +
        " is above what max_train_batch_size leaves a rank of a node: " + std::to_string(settings.max_batch) + " / " +
        std::to_string(ranks_per_node) + " = " + std::to_string(limit) + ".");
  }
  const std::int64_t low = std::max<std::int64_t>(settings.min_devices / settings.devices_per_node, 1);
  const std::int64_t nodes = settings.max_devices / settings.devices_per_node;
  Choice choice = choose(settings, limit, low, nodes > 0 ? nodes : limit / *smallest);
  choice.batch *= ranks_per_node;
  for (std::int64_t& size : choice.sizes) size *= ranks_per_node;

  const std::int64_t ranks = devices / settings.model_parallel;
  if (devices % settings.model_parallel == 0 && std::binary_search(choice.sizes.begin(), choice.sizes.end(), ranks))
    return choice;
  if (ranks == 0)
    throw ConfigError("elasticity.model_parallel_size: " + std::to_string(settings.model_parallel) +
                      " is above the number of devices, " + std::to_string(devices) + ".");
  std::optional<std::int64_t> batch;
  for (const std::int64_t micro : settings.micro_batches) {
    if (micro > settings.max_batch / ranks) continue;
    const std::int64_t fitting = settings.max_batch / (micro * ranks) * micro * ranks;
    batch = !batch ? fitting : settings.prefer_larger ? std::max(*batch, fitting) : std::min(*batch, fitting);
  }
  if (!batch) {
    throw ConfigError("elasticity.max_train_batch_size: " + std::to_string(settings.max_batch) + " is too small for " +
                      std::to_string(ranks) + " data-parallel ranks: each takes at least " + std::to_string(*smallest) +
                      ".");
  }
  return {*batch, {ranks}, true};
}

std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text.empty() ? "none" : text;
}

void split(ElasticBatch& batch, const ElasticityConfig& settings, std::int64_t ranks) {
  if (!std::binary_search(batch.sizes.begin(), batch.sizes.end(), ranks)) {
    throw ConfigError("elasticity: the data-parallel size " + std::to_string(ranks) +
                      " does not fit the elastic batch " + std::to_string(batch.train_batch) +
                      ". Sizes that do: " + listed(batch.sizes) + ".");
  }
  for (const std::int64_t micro : settings.micro_batches) {
    if (batch.train_batch / ranks % micro == 0) batch.micro_batch = std::max(batch.micro_batch, micro);
  }
  if (batch.micro_batch == 0) {
    throw ConfigError("elasticity: no micro-batch of " + listed(settings.micro_batches) +
                      " divides the share of each of " + std::to_string(ranks) + " ranks of the batch " +
                      std::to_string(batch.train_batch) + ".");
  }
  batch.size = ranks;
  batch.accumulation = batch.train_batch / (batch.micro_batch * ranks);
}

}  // namespace

std::string ElasticBatch::remark(const ElasticityConfig& settings) const {
  const std::int64_t devices = size * settings.model_parallel, node = settings.devices_per_node;
  if (!is_for_one_size || devices % node == 0) return "";
  const std::string count = std::to_string(devices) + (devices == 1 ? " device" : " devices");
  return "Version 0.2 counts whole nodes, and " + count + (devices == 1 ? " does" : " do") + " not fill nodes of " +
         std::to_string(node) + " (num_gpus_per_node): this batch is for " + count +
         " alone, and other numbers train with another one. 'capstan launch --elastic' refuses such numbers.";
}

ElasticBatch elastic_batch(const ElasticityConfig& settings, std::optional<std::int64_t> devices) {
  const bool by_nodes = settings.version > 0.15;
  if (by_nodes && !devices) {
    throw ConfigError("elasticity: version 0.2 needs the number of devices. Give --world, or set WORLD_SIZE.");
  }
  Choice choice = by_nodes ? choose_by_nodes(settings, *devices)
                           : choose(settings, settings.max_batch, settings.min_devices, settings.max_devices);
  ElasticBatch batch{choice.batch, std::move(choice.sizes)};
  batch.is_for_one_size = choice.is_for_one_size;
  if (devices) split(batch, settings, *devices / settings.model_parallel);
  return batch;
}

}  // namespace capstan
