#pragma once

#include <cstdint>
#include <optional>

#include "core/config/config.hpp"
#include "core/elastic/world.hpp"
#include "core/engine/engine.hpp"

namespace capstan::cli {

/// The snapshots from which an elastic run goes on. All members call each function together.
class ElasticSnapshots {
 public:
  ElasticSnapshots(const WorldFolder& folder, const ElasticRunConfig& config) : folder_(folder), config_(config) {}

  /// Loads the newest one that is complete. Returns what was kept with it; nothing where there is none.
  std::optional<Json> load(Engine& engine) const;
  /// After a step: takes one where it is due. `kept` makes what is kept with it.
  void after_step(Engine& engine, const std::function<Json()>& kept);
  /// Takes one now; it is complete when this returns.
  void take(Engine& engine, const Json& kept);

 private:
  const WorldFolder& folder_;
  const ElasticRunConfig& config_;
};

}  // namespace capstan::cli
