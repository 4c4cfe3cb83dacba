#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/resolve/effective.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// A global batch, the data-parallel sizes that divide it evenly, and how one of them splits it.
struct ElasticBatch {
  std::int64_t train_batch = 0;
  std::vector<std::int64_t> sizes;                           // ascending
  std::int64_t size = 0, micro_batch = 0, accumulation = 0;  // 0 when no number of devices was given
  bool is_for_one_size = false;  // version 0.2: no batch of whole nodes fits, so this one is for `size` alone

  /// A sentence about that where the devices do not fill whole nodes; empty otherwise.
  std::string remark(const ElasticityConfig& settings) const;
};

/// The batch that as many data-parallel sizes as possible divide. The same settings give the same batch everywhere.
/// `devices`: the number of devices now; version 0.2 needs it. Throws ConfigError when no batch or micro-batch fits.
ElasticBatch elastic_batch(const ElasticityConfig& settings, std::optional<std::int64_t> devices);

/// Replaces the batch keys of an elastic configuration, whose section passed its checks, by the elastic batch. False
/// when it could not be made; the reason is reported.
bool apply_elasticity(Effective& values, const ConfigContext& context, Problems& problems);

/// What an elastic run may not change when it goes on from a checkpoint: the first of the values that decide the batch
/// in which it differs from the configuration that was saved, as a sentence. Empty when there is none, and when either
/// of them is not elastic.
std::string elastic_conflict(const Json& saved_effective, const Json& effective);

}  // namespace capstan
