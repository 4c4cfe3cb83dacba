#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/typed/checkpoint.hpp"
#include "core/config/typed/communication.hpp"
#include "core/config/typed/compression.hpp"
#include "core/config/typed/data_efficiency.hpp"
#include "core/config/typed/elasticity.hpp"
#include "core/config/typed/precision.hpp"
#include "core/config/typed/profiling.hpp"
#include "core/config/typed/zero.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// A component that the configuration names: `params` are validated and complete.
struct ComponentChoice {
  std::string kind, type;
  Json params = Json::object();
  std::string where;           // the key path that chose it, for messages: "optimizer.type"
  std::string device = "cpu";  // the device whose build of the component is taken
};

/// Samples per step and how they are split; all positive and consistent: train = micro * accumulation * world.
struct BatchConfig {
  std::int64_t train_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;
  int world_size = 1;
};

enum class Precision { kFp32, kBf16, kFp16 };

struct PrecisionConfig {
  Precision compute = Precision::kFp32;
  std::string grad_accum_dtype;  // "float32", "bfloat16", "float16"; resolved, never empty
  std::string buffer_dtype;      // the same names; empty: buffers stay as loaded
  // Expressions for names of buffers that are fp32 whatever buffer_dtype says; absent: those that the model names.
  std::optional<std::vector<std::string>> fp32_buffers;
  bool check_grad_overflow = true;  // bf16
  std::string autocast_dtype;       // "bfloat16", "float16": autocast runs the forward pass in it; empty: no autocast
  // What amp may ask for beside a compute type.
  bool keep_batchnorm_fp32 = false;  // parameters of batch normalisation stay fp32
  bool fp32_masters = true;          // false: updates are rounded to the compute type
  std::string output_dtype;          // the dtype that the loss is cast to; empty: as the model gives it
  // Masters, and the optimizer's moments, are kept in the compute type, which is of 16 bits.
  bool low_precision_masters = false, low_precision_states = false;
  bool stochastic_rounding = false;  // and updates of them are rounded up or down at random
  // The loss scale of fp16, amp or an fp16 autocast.
  bool scales_loss = false;
  std::string scaled_by = "fp16";  // the section that asks for it
  double loss_scale = 0;           // 0: dynamic
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  double max_loss_scale = std::numeric_limits<double>::infinity();
};

struct ReportConfig {
  std::optional<std::int64_t> steps_per_print = 10;  // none: never
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  bool dump_state = false;
  bool throughput_timer = true;
  bool throughput_synchronized = true;   // timers.throughput.synchronized
  std::optional<std::string> log_level;  // debug, info, warning, error, critical
};

/// "capstan.parameter_groups": parameters that a rule selects get its optimizer parameters instead of the section's.
struct ParameterGroupRule {
  std::vector<std::string> name_patterns;  // ECMAScript regular expressions searched in the full name; any may match
  std::optional<std::int64_t> dims_below;  // also: parameters with fewer dimensions than this
  std::map<std::string, Json> overrides;   // optimizer parameters, validated: {"weight_decay": 0}
};

/// capstan.elastic: of `capstan launch --elastic`
struct ElasticRunConfig {
  std::int64_t every = 0;     // steps between snapshots; 0: as `overhead` allows
  double overhead = 0.01;     // the share of the time that snapshots may take
  double wait = 600;          // s, for enough processes to go on
  std::int64_t partners = 1;  // hosts that have copies of this one's snapshots
};

/// capstan.run.sample_*: texts that the model writes now and then while it is trained.
struct SampleConfig {
  std::int64_t every = 0;            // steps; 0: never
  std::vector<std::string> prompts;  // texts to continue
  std::string prompts_file;          // JSON lines with more of them; empty: none
  std::int64_t tokens = 64;          // new ones of a sample, at most
  double temperature = 0;            // 0: the likeliest token
  std::int64_t top_k = 0;            // 0: all tokens
  double top_p = 1;
  std::string tokenizer;  // a folder or file; empty: what comes with the weights
};

/// "capstan": what DeepSpeed takes from the program. Every member may be overridden from the command line.
struct RunConfig {
  static constexpr std::int64_t kLossChunk = 64 << 20;

  std::optional<ComponentChoice> model;
  std::vector<std::string> data_paths;          // files or folders
  std::vector<std::string> eval_data_paths;     // empty: none
  std::optional<std::int64_t> sequence_length;  // tokens a sample; default: the model's
  std::optional<ComponentChoice> dataset;       // how data is read; absent where no path is given
  std::optional<ComponentChoice> sampler;       // of the order of samples; absent: capstan.data.shuffle
  std::optional<ComponentChoice> pacing;        // of curricula whose schedule is custom
  std::string teacher;                          // a checkpoint (DIR or DIR:TAG) or a safetensors file; empty: none
  bool shuffle = true;
  std::uint64_t seed = 1234;
  std::optional<std::int64_t> steps;
  std::string save_dir;                     // empty: no checkpoints
  std::int64_t save_every = 0;              // steps; 0: only at the end
  std::int64_t keep = 0;                    // newest checkpoints kept; 0: all
  bool overwrite = false;                   // replaces checkpoints of another run in save_dir
  std::int64_t eval_every = 0;              // steps; 0: only at the end
  bool keep_best = false;                   // the checkpoint of the lowest evaluation loss is saved and kept
  std::int64_t patience = 0;                // evaluations without a lower loss that end the run; 0: none do
  std::int64_t loss_chunk = kLossChunk;     // bytes of logits that a loss holds at a time; 0: all of them
  std::string on_nan = "stop";              // stop, continue
  std::string on_monitor_failure = "stop";  // stop, continue: of a monitor that cannot be started
  std::string on_mismatch = "stop";         // stop, continue: of a compression that acts on no module of the model
  ElasticRunConfig elastic;
  SampleConfig sample;
};

/// A whole configuration: read, completed, checked.
struct Config {
  std::string source;          // the file's name, for messages
  std::string device = "cpu";  // to train on: "cpu", or the type of an accelerator
  BatchConfig batch;
  std::optional<ComponentChoice> optimizer;
  std::optional<ComponentChoice> scheduler;
  double gradient_clipping = 1.0;  // 0: off
  bool gradient_clipping_given = false;
  PrecisionConfig precision;
  ReportConfig report;
  bool dataloader_drop_last = false;

  // The sections that core acts on. Others go to plugins as JSON. Absent: the section's absence means something.
  ZeroConfig zero;
  TorchAutocastConfig torch_autocast;
  CommunicationConfig communication;
  CommsLoggerConfig comms_logger;
  AutotuningConfig autotuning;
  CompressionConfig compression;
  DataEfficiencyConfig data_efficiency;
  ElasticityConfig elasticity;
  CheckpointConfig checkpoint;
  std::optional<DatastatesConfig> datastates_ckpt;

  std::vector<ComponentChoice> monitors;      // enabled sections of monitors (csv_monitor, ...) and capstan.monitors
  std::vector<ComponentChoice> observers;     // capstan.observers and sections that observers own
  std::vector<ComponentChoice> compressions;  // capstan.compressions and sections that compressions own
  // Where what is offloaded goes: capstan.offload.optimizer and .parameters, or the device nvme of zero_optimization's
  // sections. Parameters: at stage 3 alone.
  std::optional<ComponentChoice> optimizer_offload, parameter_offload;
  std::optional<ComponentChoice> activation_offload;  // capstan.offload.activations
  std::optional<ComponentChoice> attention;           // the layout of sparse_attention, or capstan.attention
  std::optional<ComponentChoice> attention_kernel;    // what computes it; there where `attention` is
  std::optional<ComponentChoice> tuner;               // of `capstan tune`; absent: it is not installed
  std::vector<ParameterGroupRule> parameter_groups;
  std::vector<std::string> corrections;              // capstan.corrections
  std::map<std::string, std::string> plugin_sha256;  // capstan.plugins.sha256: file name -> 64 hexadecimal digits
  RunConfig run;

  Json document;                               // as written, after old names were replaced
  Json effective;                              // every known key with its value in force
  std::map<std::string, std::string> origins;  // key path -> "file", "default", "derived", "program", "command line"
};

/// What a program sets itself, by dotted key path: {{"train_micro_batch_size_per_gpu", 8}, {"optimizer.params.lr",
/// 3e-4}}.
using ProgramValues = std::vector<std::pair<std::string, Json>>;

/// Paths of values in force that a run takes, each when it is taken: the keys from which batch sizes, precision, the
/// device and settings of the run are worked out, and those handed to a component. What typed sections hold, and what a
/// rule only checks, is not among them.
using ConsumedKeys = std::set<std::string, std::less<>>;

/// What the program knows beside the file.
struct ConfigContext {
  int world_size = 1;
  std::string world_size_origin = "no launcher's environment variable is set";
  std::vector<std::pair<std::string, Json>> overrides;  // dotted key path and value, from the command line
  /// They fill what the file leaves out or has as "auto"; where the file says otherwise, that is an error.
  ProgramValues program_values;
  std::vector<std::string> plugin_paths;    // --plugin-path
  bool lenient = false;                     // unknown keys are warnings
  bool strict = false;                      // other programs' options are errors, not warnings
  std::optional<std::int64_t> hidden_size;  // the hidden size of the model, for "auto"
  bool world_known = true;                  // false: world_size is only assumed
  bool check_only = false;                  // nothing is about to be trained: what only a program can supply may lack
  bool takes_steps = true;                  // false: what is true of training steps alone is not said
  bool says_autos = true;                   // false: the file is the program's own, whose "auto" nobody asks about
  bool trains_alone = false;                // no program is to bring what the file lacks
  ConsumedKeys* consumed = nullptr;         // gets what acts on the values in force; null: nobody asks
};

/// The text of a configuration and the name to show for it.
struct ConfigText {
  std::string text, source;
  bool toml = false;
  bool has_places = true;  // false: nobody has seen the text, so that lines and columns say nothing
};

}  // namespace capstan
