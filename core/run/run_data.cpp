#include "core/run/run_data.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/engine/initialize.hpp"
#include "core/errors.hpp"

namespace capstan {

RunData run_data(std::shared_ptr<const Dataset> data) {
  RunData out{.samples = data->samples(),
              .fingerprint = data->fingerprint(),
              .sequence_length = data->sequence_length(),
              .read = {}};
  out.read = [data = std::move(data)](std::span<const std::int64_t> numbers) { return data->read(numbers); };
  return out;
}

std::int64_t sequence_length(const Config& config, const Model& model) {
  if (config.run.sequence_length) return *config.run.sequence_length;
  const Json facts = model.describe();
  const Json* length = facts.find("sequence_length");
  if (length && length->is_integer()) return length->as_integer();
  throw ConfigError("capstan.data.sequence_length: not given, and model '" + model.description() +
                    "' has none of its own. Give --seq.");
}

Dataset open_data(const std::vector<std::string>& paths, const std::string& key, const LoadedConfig& loaded,
                  const Model& model) {
  if (paths.empty()) {
    throw ConfigError(key +
                      ": not given. Name text files or folders, for instance --data corpus/, or in the "
                      "configuration: \"capstan\": {\"data\": {\"path\": \"corpus/\"}}.");
  }
  Dataset::Source source{.paths = paths, .sequence_length = sequence_length(loaded.config, model)};
  const Json facts = model.describe();
  if (const Json* size = facts.find("vocab_size"); size && size->is_integer()) source.vocabulary = size->as_integer();
  return open_dataset(loaded.config, loaded.plugins, source);
}

std::int64_t first_sample(const Engine& engine, std::int64_t micro_batch) {
  return (micro_batch * engine.world_size() + engine.rank()) * engine.config().batch.micro_batch_size;
}

std::vector<std::int64_t> samples_of(Engine& engine, const BatchOrder& order, std::int64_t micro_step) {
  const std::int64_t first = first_sample(engine, micro_step), rows = engine.config().batch.micro_batch_size;
  if (!engine.has_sampler()) return order.samples(engine.progress().global_samples + first, rows);
  const auto own = engine.step_samples().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows));
  return {own.begin(), own.end()};
}

Evaluation::Evaluation(RunData data, std::int64_t micro_batch_size, int rank, int ranks)
    : data_(std::move(data)),
      rows_(std::min(micro_batch_size, data_.samples)),
      batches_((data_.samples + rows_ - 1) / rows_),
      ranks_(ranks),
      at_(rank) {}

Batch Evaluation::next() {
  const bool remains = at_ < batches_;
  const std::int64_t first = remains ? at_ * rows_ : 0;
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(rows_, data_.samples - first)));
  std::iota(numbers.begin(), numbers.end(), first);
  at_ += ranks_;
  Batch batch = data_.read(numbers);
  batch.weight = remains ? static_cast<double>(numbers.size()) : 0;
  return batch;
}

}  // namespace capstan
