#include "core/run/elastic_snapshots.hpp"

namespace capstan {

std::optional<Json> ElasticSnapshots::load(Engine& engine) {
  engine.want_snapshots(true);
  return engine.load_snapshot(folder_);
}

bool ElasticSnapshots::after_step(Engine& engine, const std::function<Json()>& kept) {
  if (!engine.snapshot_due()) return false;
  engine.begin_snapshot(folder_, kept());
  return true;
}

void ElasticSnapshots::take(Engine& engine, const Json& kept) {
  engine.begin_snapshot(folder_, kept);
  engine.finish_snapshot();
}

}  // namespace capstan
