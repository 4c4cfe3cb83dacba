#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/data/batch_order.hpp"
#include "core/data/dataset.hpp"
#include "core/engine/engine.hpp"
#include "core/model/model.hpp"
#include "core/run/loaded_config.hpp"

namespace capstan {

/// The samples of a run, by their numbers from 0 on.
struct RunData {
  std::int64_t samples = 0;
  /// A text that other data does not have: a run that is resumed on other data logs a warning. Empty: not known.
  std::string fingerprint;
  std::int64_t sequence_length = 0;  // tokens a sample; 0: samples have no length of their own
  /// A batch of these samples, row i that of numbers[i].
  std::function<Batch(std::span<const std::int64_t> numbers)> read;
};

RunData run_data(std::shared_ptr<const Dataset> data);

/// The data at `paths`, by the component of capstan.data.dataset, checked against the model's vocabulary. `key` names
/// where paths come from, for messages. Throws RuntimeFault where batches have tensors that the data set's facts list
/// under "required" and the model's do not list under "reads", and where such rows of several documents meet sparse
/// attention.
Dataset open_data(const std::vector<std::string>& paths, const std::string& key, const LoadedConfig& loaded,
                  const Model& model);

/// Tokens a sample: capstan.data.sequence_length, or the model's. Throws ConfigError where neither is known.
std::int64_t sequence_length(const Config& config, const Model& model);

/// Where this rank's micro-batch begins among the samples of all ranks. Micro-batches are counted from where samples
/// are: from the begin of the run, or of a step.
std::int64_t first_sample(const Engine& engine, std::int64_t micro_batch);

/// The samples of this rank's micro-batch of the step under way, `micro_step` counted from 0. `order`: of the whole
/// run.
std::vector<std::int64_t> samples_of(Engine& engine, const BatchOrder& order, std::int64_t micro_step);

/// All samples of `data`, in its order, in micro-batches that are dealt out to the ranks; the last is as small as what
/// remains. Each rank has as many: one for which none remains repeats the first, which then counts for nothing.
class Evaluation {
 public:
  Evaluation(RunData data, std::int64_t micro_batch_size, int rank, int ranks);

  std::int64_t samples() const { return data_.samples; }
  std::int64_t own_batches() const { return (batches_ + ranks_ - 1) / ranks_; }
  Batch next();

 private:
  RunData data_;
  std::int64_t rows_, batches_, ranks_, at_;
};

}  // namespace capstan
