#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {
namespace {

constexpr const char* kTune = "capstan tune";
constexpr const char* kRun = "a trial of capstan tune";

}  // namespace

std::span<const Key> autotuning() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"autotuning.enabled", "boolean", "false", "", 0, "001 002 DS",
     "Values of zero_optimization and the micro-batch may be lists, which capstan tune searches.", kTune},
    {"autotuning.results_dir", "path", "\"autotuning_results\"", "", 0, "001 002 DS",
     "Folder of results, below the folder of the launch.", kTune},
    {"autotuning.exps_dir", "path", "\"autotuning_exps\"", "", 0, "001 002 DS",
     "Folder of the descriptions of experiments.", kTune},
    {"autotuning.overwrite", "boolean", "false", "", 0, "001 002 DS",
     "Run experiments again that have results; true wipes both folders.", kTune},
    {"autotuning.metric", "string", "\"throughput\"", "latency|throughput|FLOPS", kAnyCase, "001 002 DS",
     "What ranks experiments.", kTune},
    {"autotuning.start_profile_step", "integer", "3", ">= 0", 0, "001 002 DS",
     "First measured step.", kTune},
    {"autotuning.end_profile_step", "integer", "5", ">= 0", 0, "001 002 DS",
     "Last measured step.", kTune},
    {"autotuning.fast", "boolean", "true", "", 0, "001 002 DS",
     "Tune only stage and micro-batch.", kTune},
    {"autotuning.max_train_batch_size", "integer", "", "> 0", 0, "001 002 DS",
     "Cap on the global batch.", kTune},
    {"autotuning.mp_size", "integer", "1", "> 0", 0, "001 002 DS",
     "Model-parallel degree.", kTune},
    {"autotuning.num_tuning_micro_batch_sizes", "integer", "3", "> 0", 0, "001 002 DS",
     "How many micro-batches to try.", kTune},
    {"autotuning.tuner_type", "string", "\"model_based\"", "", 0, "001 002 DS",
     "What chooses the points to try: \"gridsearch\", \"random\", \"model_based\", or an installed plugin of kind tuner.", kTune},
    {"autotuning.tuner_early_stopping", "integer", "5", ">= 0", 0, "001 002 DS",
     "Stop after so many experiments without a new best; 0: never.", kTune},
    {"autotuning.tuner_num_trials", "integer", "50", "> 0", 0, "001 002 DS",
     "Most experiments a stage.", kTune},
    {"autotuning.arg_mappings.<key>", "string", "", "", 0, "001 002 DS",
     "Which flag of the script follows the tuned value of a key.", kTune},
    {"autotuning.metric_path", "path", "", "", 0, "DS",
     "Makes a run a trial: it measures its steps, writes its metrics here and ends; set by the tuner.", kRun},
    {"autotuning.model_info_path", "path", "", "", 0, "DS",
     "Where the profiling run writes facts about the model; set by the tuner.", kRun},
    {"autotuning.model_info", "object", "", "", kOptional, "DS",
     "Known facts about the model."},
    {"autotuning.model_info.profile", "boolean", "false", "", 0, "DS",
     "This run only profiles the model; set by the tuner.", kRun},
    {"autotuning.model_info.num_params", "integer", "", "> 0", 0, "DS",
     "Number of parameters.", kTune},
    {"autotuning.model_info.hidden_size", "integer", "", "> 0", 0, "DS",
     "Hidden size, which sizes the buckets of stage 3.", kTune},
    {"autotuning.model_info.num_layers", "integer", "", "> 0", kNoEffect, "DS",
     "Number of layers.", "no estimate needs it"},
    {"autotuning.max_train_micro_batch_size_per_gpu", "integer", "1024", "> 0", 0, "DS",
     "Upper bound of the search.", kTune},
    {"autotuning.min_train_micro_batch_size_per_gpu", "integer", "1", "> 0", 0, "DS",
     "Lower bound of the search.", kTune},
    {"autotuning.min_train_batch_size", "integer", "1", "> 0", 0, "DS",
     "Lower bound of the global batch.", kTune},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
