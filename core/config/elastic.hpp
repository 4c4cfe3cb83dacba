#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/effective.hpp"
#include "core/config/problem.hpp"

namespace capstan {

/// The elasticity section, checked.
struct ElasticSettings {
  std::int64_t max_batch = 0;
  std::vector<std::int64_t> micro_batches;
  std::int64_t min_devices = 1, max_devices = 10000;
  bool prefer_larger = true;
  double version = 0.2;
  std::int64_t devices_per_node = 1, model_parallel = 1;
};

/// A global batch, the data-parallel sizes that divide it evenly, and how one of them splits it.
struct ElasticBatch {
  std::int64_t train_batch = 0;
  std::vector<std::int64_t> sizes;                           // ascending
  std::int64_t size = 0, micro_batch = 0, accumulation = 0;  // 0 when no number of devices was given
};

/// The elasticity section of a configuration. Throws ConfigError with every error of the configuration, and when
/// elasticity is not enabled.
ElasticSettings read_elastic_settings(const ConfigText& text, ConfigContext context);

/// The section of a configuration whose checks passed.
ElasticSettings elastic_settings(const Effective& values);

/// The batch that as many data-parallel sizes as possible divide. The same settings give the same batch everywhere.
/// `devices`: the number of devices now; version 0.2 needs it. Throws ConfigError when no batch or micro-batch fits.
ElasticBatch elastic_batch(const ElasticSettings& settings, std::optional<std::int64_t> devices);

/// Replaces the batch keys of an elastic configuration, whose section passed its checks, by the elastic batch. False
/// when it could not be made; the reason is reported.
bool apply_elasticity(Effective& values, const ConfigContext& context, Problems& problems);

}  // namespace capstan
