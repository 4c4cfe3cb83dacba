#include "core/config/resolve/elastic.hpp"

#include <string>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "core/config/resolve/launcher_world.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

Json result_json(const ElasticBatch& batch) {
  Json out = Json::object();
  out["train_batch_size"] = batch.train_batch;
  out["data_parallel_sizes"] = Json::array();
  for (const std::int64_t size : batch.sizes) out["data_parallel_sizes"].push_back(size);
  if (batch.size == 0) return out;
  out["data_parallel_size"] = batch.size;
  out["train_micro_batch_size_per_gpu"] = batch.micro_batch;
  out["gradient_accumulation_steps"] = batch.accumulation;
  return out;
}

std::string result_text(const ElasticBatch& batch) {
  std::string sizes;
  for (const std::int64_t size : batch.sizes) sizes += (sizes.empty() ? "" : " ") + std::to_string(size);
  std::string text = "train_batch_size " + std::to_string(batch.train_batch) + "\nfits data-parallel " +
                     (batch.sizes.size() == 1 ? "size " : "sizes ") + (sizes.empty() ? "none" : sizes) + "\n";
  if (batch.size == 0) return text;
  return text + "on " + std::to_string(batch.size) + ": train_micro_batch_size_per_gpu " +
         std::to_string(batch.micro_batch) + ", gradient_accumulation_steps " + std::to_string(batch.accumulation) +
         "\n";
}

}  // namespace

int elastic(const ElasticArguments& arguments) {
  const LauncherWorld launcher = launcher_world();
  std::optional<std::int64_t> devices;
  if (arguments.world > 0) devices = arguments.world;
  if (!devices && launcher.known) devices = launcher.size;
  const ElasticityConfig settings =
      read_elastic_config(config_text(arguments.config), config_context(arguments.config)).elasticity;
  const ElasticBatch batch = elastic_batch(settings, devices);
  if (const std::string remark = batch.remark(settings); !remark.empty()) log::warning("elasticity: " + remark);
  print(arguments.json ? result_json(batch).dump(2) + "\n" : result_text(batch));
  return 0;
}

}  // namespace capstan::cli
