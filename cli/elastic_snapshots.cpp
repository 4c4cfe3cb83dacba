#include "cli/elastic_snapshots.hpp"

#include <filesystem>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan::cli {
namespace {

constexpr std::int64_t kEvery = 10;

}  // namespace

std::optional<Json> ElasticSnapshots::load(Engine& engine) const {
  if (!std::filesystem::exists(folder_.snapshots() / "latest")) return std::nullopt;
  return engine.load_checkpoint(folder_.snapshots());
}

void ElasticSnapshots::after_step(Engine& engine, const std::function<Json()>& kept) {
  const std::int64_t every = config_.every > 0 ? config_.every : kEvery;
  if (engine.progress().global_steps % every == 0) take(engine, kept());
}

void ElasticSnapshots::take(Engine& engine, const Json& kept) {
  engine.save_checkpoint(folder_.snapshots(), "", kept);
  engine.finish_saving();
  if (engine.rank() == 0) prune_checkpoints(folder_.snapshots(), 2);
}

}  // namespace capstan::cli
