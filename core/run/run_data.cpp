#include "core/run/run_data.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/model/read_tensors.hpp"

namespace capstan {
namespace {

/// Throws RuntimeFault where the run would train or evaluate as if the batches had nothing but tokens and labels.
void refuse_unread(const Dataset& data, const std::string& path, const Config& config, const Model& model) {
  if (const std::string name = first_unread(data.facts(), model); !name.empty()) {
    throw RuntimeFault("data: '" + path + "' has rows of several documents, which '" + name +
                       "' tells apart, and model '" + model.description() + "' does not say that it reads '" + name +
                       "': tokens would see other documents of their rows. Take 'gpt' or 'decoder', one document a "
                       "sample (\"documents\": \"separate\" of the data set 'indexed'), or a model whose describe() "
                       "lists the name under \"reads\".");
  }
  if (config.attention && data.facts().find("required") != nullptr) {
    throw RuntimeFault(config.attention->where + ": '" + path +
                       "' has rows of several documents, each of which is attended to by itself, and a layout is of "
                       "whole rows. Leave the layout out, or take one document a sample (\"documents\": \"separate\" "
                       "of the data set 'indexed').");
  }
}

}  // namespace

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
  Dataset data = open_dataset(loaded.config, loaded.plugins, source);
  refuse_unread(data, paths.front(), loaded.config, model);
  return data;
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
