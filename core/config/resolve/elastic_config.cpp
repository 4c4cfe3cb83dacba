#include <cstdlib>
#include <string>

#include "core/config/resolve/elastic.hpp"
#include "core/errors.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

constexpr const char* kVariable = "DEEPSPEED_ELASTICITY_CONFIG";
// The scheduler must have seen the same values of kFixedKeys, because they decide the batch.
constexpr const char* kFixedKeys[] = {"max_train_batch_size", "micro_batch_sizes", "version"};
constexpr const char* kBatchKeys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};

/// The scheduler's view must agree in what decides the batch: the first difference is an error.
void compare_with_scheduler(const Effective& values, const ConfigContext& context, Problems& problems) {
  const char* text = std::getenv(kVariable);
  if (!text) {
    if (!context.check_only) {
      problems.warning(
          "elasticity",
          std::string(kVariable) +
              " is not set, so it cannot be checked that the scheduler scales this job to compatible sizes.");
    }
    return;
  }
  Json seen;
  try {
    seen = Json::parse(text);
  } catch (const ConfigError& error) {
    problems.error("elasticity", std::string(kVariable) + " does not hold JSON: " + error.what());
    return;
  }
  if (const Json* section = seen.find("elasticity")) seen = *section;
  for (const char* key : kFixedKeys) {
    const std::string path = std::string("elasticity.") + key;
    const Json *theirs = seen.find(key), *ours = values.find(path);
    if (!theirs || !ours || *theirs == *ours) continue;
    problems.error(path, shown(*ours) + " differs from what the scheduler saw in " + kVariable + ", " + shown(*theirs) +
                             ". Start the job with the same values.");
    return;
  }
}

/// Batch keys beside elasticity: refused, or overridden when the file says so.
bool may_replace(const Effective& values, const ElasticBatch& batch, Problems& problems) {
  const std::int64_t made[] = {batch.train_batch, batch.micro_batch, batch.accumulation};
  const bool ignore = values.flag("elasticity.ignore_non_elastic_batch_info");
  std::string given;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string key = kBatchKeys[i];
    if (!values.given(key) || !values.find(key)) continue;
    given += (given.empty() ? "" : ", ") + key;
    if (ignore)
      problems.warning(key, "elasticity decides it: " + shown(*values.find(key)) + " -> " +
                                (made[i] > 0 ? std::to_string(made[i]) : "by the world size") + ".");
  }
  if (given.empty() || ignore) return true;
  problems.error("elasticity.enabled", "elasticity decides the batch sizes, but the file gives " + given +
                                           ". Remove them, or set elasticity.ignore_non_elastic_batch_info.");
  return false;
}

/// "sizes 1, 2, 4", "size 3"
std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string text = sizes.size() == 1 ? "size" : "sizes";
  for (const std::int64_t& size : sizes) text += (&size == &sizes.front() ? " " : ", ") + std::to_string(size);
  return text;
}

/// Names the bound that version 0.2, as in DeepSpeed, passes over where no batch within the bounds fits the devices.
std::string beyond_bounds(const ElasticityConfig& settings, std::int64_t devices) {
  const bool above = devices > settings.max_devices, below = devices < settings.min_devices;
  if (settings.version <= 0.15 || (!above && !below)) return "";
  return std::string(" ") + (above ? "max_gpus is " : "min_gpus is ") +
         std::to_string(above ? settings.max_devices : settings.min_devices) +
         ": version 0.2 serves other numbers too.";
}

}  // namespace

bool apply_elasticity(Effective& values, const ConfigContext& context, Problems& problems) {
  compare_with_scheduler(values, context, problems);
  const ElasticityConfig settings = read_elasticity(SectionValues(values.find("elasticity")));
  try {
    std::optional<std::int64_t> devices;
    if (context.world_known) devices = context.world_size;
    if (!devices && settings.version > 0.15) {
      problems.notice("elasticity",
                      "the batch follows from the number of devices, which is not known here: --world gives it.");
      return false;
    }
    const ElasticBatch batch = elastic_batch(settings, devices);
    if (!may_replace(values, batch, problems)) return false;
    values.derive(kBatchKeys[0], batch.train_batch);
    if (batch.micro_batch > 0) {
      values.derive(kBatchKeys[1], batch.micro_batch);
      values.derive(kBatchKeys[2], batch.accumulation);
    }
    const std::string remark = batch.remark(settings);
    problems.notice("elasticity", "the batch is " + std::to_string(batch.train_batch) +
                                      ", which fits the data-parallel " + sizes_text(batch.sizes) + "." +
                                      (devices ? beyond_bounds(settings, *devices) : "") +
                                      (remark.empty() ? "" : " " + remark));
    return true;
  } catch (const ConfigError& error) {
    std::string text = error.what();
    const auto colon = text.find(": ");
    problems.error(text.substr(0, colon), text.substr(colon + 2));
    return false;
  }
}

std::string elastic_conflict(const Json& saved_effective, const Json& effective) {
  const Json *saved = saved_effective.find("elasticity"), *now = effective.find("elasticity");
  const auto enabled = [](const Json* section) {
    return section && section->find("enabled") && *section->find("enabled") == Json(true);
  };
  if (!enabled(saved) || !enabled(now)) return "";
  for (const char* key : kFixedKeys) {
    const Json *theirs = saved->find(key), *ours = now->find(key);
    if (!theirs || !ours || *theirs == *ours) continue;
    return std::string("elasticity.") + key + " is " + shown(*ours) + ", and the checkpoint was saved with " +
           shown(*theirs) + ". Resume with the same value, or start from its weights alone with --init-from.";
  }
  return "";
}

}  // namespace capstan
