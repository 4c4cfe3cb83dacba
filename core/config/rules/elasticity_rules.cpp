#include <algorithm>
#include <cmath>
#include <string>

#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"

namespace capstan {

namespace {

// The search is exhaustive; these keep it within a moment for any input.
constexpr std::int64_t kLargestBatch = 1'000'000'000;
constexpr std::size_t kMostMicroBatches = 32;

bool has_error_from(std::size_t first, const Problems& problems) {
  return std::any_of(problems.all().begin() + static_cast<std::ptrdiff_t>(first), problems.all().end(),
                     [](const Problem& problem) { return problem.severity == Problem::Severity::kError; });
}

}  // namespace

bool check_elasticity_rules(const Effective& values, Problems& problems) {
  if (!values.flag("elasticity.enabled")) return false;
  const std::size_t before = problems.all().size();
  const Json *cap = values.find("elasticity.max_train_batch_size"),
             *micros = values.find("elasticity.micro_batch_sizes");
  if (!cap)
    problems.error("elasticity.max_train_batch_size",
                   "is missing; elasticity needs it: the largest batch that is acceptable.");
  if (!micros)
    problems.error("elasticity.micro_batch_sizes", "is missing; elasticity needs it: a list such as [2, 4, 6].");
  if (micros && micros->size() == 0) problems.error("elasticity.micro_batch_sizes", "must not be empty.");
  const std::int64_t low = values.integer("elasticity.min_gpus", 1),
                     high = values.integer("elasticity.max_gpus", 10000);
  if (high < low)
    problems.error("elasticity.max_gpus", std::to_string(high) + " is below min_gpus, " + std::to_string(low) + ".");
  if (cap && micros) {
    for (const Json& micro : micros->as_array()) {
      if (micro.as_integer() <= cap->as_integer()) continue;
      problems.error("elasticity.micro_batch_sizes",
                     shown(micro) + " is above max_train_batch_size, " + shown(*cap) + ".");
      break;
    }
  }
  if (cap && cap->as_integer() > kLargestBatch) {
    problems.error("elasticity.max_train_batch_size", "must be at most 1000000000, got " + shown(*cap) + ".");
  }
  if (micros && micros->size() > kMostMicroBatches) {
    problems.error("elasticity.micro_batch_sizes",
                   "must have at most 32 entries, got " + std::to_string(micros->size()) + ".");
  }
  const double version = values.number("elasticity.version", 0.2);
  const std::int64_t parallel = values.integer("elasticity.model_parallel_size", 1),
                     node = values.integer("elasticity.num_gpus_per_node", 1);
  if (version > 0.2) {
    problems.error("elasticity.version", "the highest version is 0.2, got " + shown(Json(version)) + ".");
  } else if (version != 0.1 && version != 0.2) {
    problems.error("elasticity.version", "there is no version " + shown(Json(version)) + "; there are 0.1 and 0.2.");
  } else if (version == 0.1 && parallel > 1) {
    problems.error("elasticity.model_parallel_size", "above 1 needs version 0.2.");
  }
  if (version == 0.1 && node > 1) {
    problems.notice("elasticity.num_gpus_per_node", "has no effect in version 0.1, which counts devices, not nodes.");
  }
  if (parallel > 0 && node % parallel != 0) {
    problems.error(
        "elasticity.num_gpus_per_node",
        std::to_string(node) + " is not a multiple of model_parallel_size, " + std::to_string(parallel) + ".");
  }
  return cap && micros && !has_error_from(before, problems);
}

}  // namespace capstan
