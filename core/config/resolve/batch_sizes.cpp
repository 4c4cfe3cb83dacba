#include "core/config/resolve/batch_sizes.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace capstan {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kWorld = "data-parallel size";

std::optional<std::int64_t> positive(const Effective& values, const char* key) {
  const std::int64_t value = values.integer(key);
  return value > 0 ? std::optional(value) : std::nullopt;
}

std::string world_text(std::int64_t world, const ConfigContext& context) {
  return " The data-parallel size is " + std::to_string(world) + ": " + context.world_size_origin + ".";
}

std::string factor(std::int64_t value, const char* name) { return std::to_string(value) + " (" + name + ")"; }

/// How many ranks read the same data.
std::int64_t ranks_per_replica(const Effective& values) {
  constexpr std::int64_t kMost = 1 << 20;  // keeps the product of three within 64 bits
  const auto degree = [&](const char* key) { return std::clamp<std::int64_t>(values.integer(key, 1), 1, kMost); };
  return degree("sequence_parallel_size") * degree("tensor_parallel.autotp_size") * degree("pipeline.stages");
}

// Sizes beyond this are no batch sizes; it leaves room to compute with them.
constexpr std::int64_t kLargest = 1'000'000'000'000'000;

bool product_fits(std::int64_t a, std::int64_t b, std::int64_t c) { return a <= kLargest / b && a * b <= kLargest / c; }

struct Sizes {
  std::optional<std::int64_t> train, micro, accumulation;
};

/// The data-parallel size; when nobody has said it, the one that all three keys together imply.
std::int64_t assumed_world(const Sizes& given, std::int64_t world, const ConfigContext& context, Problems& problems) {
  if (context.world_known || !given.train || !given.micro || !given.accumulation) return world;
  if (!product_fits(*given.micro, *given.accumulation, 1)) return world;
  const std::int64_t unit = *given.micro * *given.accumulation, implied = *given.train / unit;
  if (*given.train % unit != 0 || implied > std::numeric_limits<int>::max() || implied == world) return world;
  problems.notice(kTrain, "the three batch keys fit a data-parallel size of " + std::to_string(implied) +
                              "; --world says which size to check.");
  return implied;
}

/// All three are given and contradict each other: each of them as the other two would have it.
std::string contradiction(const Sizes& given, std::int64_t world) {
  const std::int64_t product = *given.micro * *given.accumulation * world;
  std::string text = std::to_string(*given.train) + " is not " + factor(*given.micro, kMicro) + " x " +
                     factor(*given.accumulation, kAccumulation) + " x " + factor(world, kWorld) + " = " +
                     std::to_string(product) + ". Right would be " + kTrain + " " + std::to_string(product);
  const auto alternative = [&](const char* key, std::int64_t others) {
    if (*given.train % others == 0) text += std::string(", or ") + key + " " + std::to_string(*given.train / others);
  };
  alternative(kMicro, *given.accumulation * world);
  alternative(kAccumulation, *given.micro * world);
  return text + ".";
}

/// The batch is not a multiple of what it is to be divided by.
std::string indivisible(const Sizes& given, std::int64_t world) {
  const std::int64_t unit = given.micro.value_or(1) * given.accumulation.value_or(1) * world;
  std::string factors;
  if (given.micro) factors += factor(*given.micro, kMicro) + " x ";
  if (given.accumulation) factors += factor(*given.accumulation, kAccumulation) + " x ";
  factors += factor(world, kWorld);
  if (given.micro || given.accumulation) factors = std::to_string(unit) + " = " + factors;
  const std::int64_t below = *given.train / unit * unit;
  return std::to_string(*given.train) + " is not a multiple of " + factors + ", so there is no " +
         (given.micro ? kAccumulation : kMicro) + " for it. Write " +
         (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + unit) + ".";
}

void check(const Sizes& given, const Sizes& all, std::int64_t world, const ConfigContext& context, Problems& problems) {
  if (*all.train > kLargest ||
      !product_fits(std::max<std::int64_t>(*all.micro, 1), std::max<std::int64_t>(*all.accumulation, 1), world)) {
    problems.error(given.train ? kTrain : kMicro, "the batch size is beyond all bounds.");
    return;
  }
  const std::int64_t product = *all.micro * *all.accumulation * world;
  if (*all.train == product) return;
  const bool complete = given.micro && given.accumulation;
  problems.error(kTrain,
                 (complete ? contradiction(given, world) : indivisible(given, world)) + world_text(world, context));
}

}  // namespace

int data_parallel_size(const Effective& values, const ConfigContext& context) {
  if (!context.world_known) return 1;
  return static_cast<int>(std::max<std::int64_t>(context.world_size / ranks_per_replica(values), 1));
}

BatchConfig resolve_batch(Effective& values, const ConfigContext& context, Problems& problems) {
  BatchConfig batch;
  batch.world_size = data_parallel_size(values, context);
  const std::int64_t replica = ranks_per_replica(values);
  // Without a launcher's word, the smallest world that holds one replica.
  const std::int64_t processes = context.world_known ? context.world_size : replica;
  if (processes % replica != 0) {
    problems.error("", "the world size " + std::to_string(context.world_size) + " is not a multiple of " +
                           std::to_string(replica) +
                           ", the ranks that share one replica of the model (sequence_parallel_size x "
                           "tensor_parallel.autotp_size x pipeline.stages).");
    return batch;
  }
  const Sizes given{positive(values, kTrain), positive(values, kMicro), positive(values, kAccumulation)};
  const std::int64_t world = assumed_world(given, processes / replica, context, problems);
  batch.world_size = static_cast<int>(world);
  // A key of a wrong type or sign was reported already; nothing can be completed from the rest.
  for (const char* key : {kTrain, kMicro, kAccumulation}) {
    if (values.given(key) && !values.find(key)) return batch;
    if (values.find(key) && !values.find(key)->is_integer()) return batch;  // a list to search, while autotuning
  }
  if (!given.train && !given.micro) return batch;
  Sizes all = given;
  if (given.train && given.micro && !given.accumulation) {
    all.accumulation = *given.train / *given.micro / world;
  } else if (given.train && !given.micro) {
    all.accumulation = given.accumulation.value_or(1);
    all.micro = *given.train / world / *all.accumulation;
  } else if (!given.train) {
    all.accumulation = given.accumulation.value_or(1);
    all.train = product_fits(*given.micro, *all.accumulation, world) ? *given.micro * *all.accumulation * world : 0;
  }
  check(given, all, world, context, problems);
  if (!given.train) values.derive(kTrain, *all.train);
  if (!given.micro) values.derive(kMicro, *all.micro);
  if (!given.accumulation) values.derive(kAccumulation, *all.accumulation);
  batch.train_batch_size = *all.train;
  batch.micro_batch_size = *all.micro;
  batch.gradient_accumulation_steps = *all.accumulation;
  return batch;
}

}  // namespace capstan
