#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/deepspeed/deepspeed_folder.hpp"
#include "core/checkpoint/torch_file/torch_file.hpp"
#include "core/checkpoint/torch_file/torch_value.hpp"
#include "core/text/json.hpp"

// Types and functions that the files of this folder share while they read one checkpoint of DeepSpeed.

namespace capstan::deepspeed {

/// The states of a checkpoint of Capstan that are values of parameters and of buffers.
inline constexpr const char *kParamState = "param", *kBufferState = "buffer";

/// How far the run was.
struct Counters {
  std::int64_t steps = 0, skipped = 0, samples = 0, world = 1;
  std::int64_t updates() const { return steps - skipped; }
};

/// A parameter and its full shape.
struct Shape {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 0;
};

/// A tensor of one of the files, flattened, and the value that it was read from.
struct Flat {
  at::Tensor values;
  TorchValue source;
};

/// One checkpoint while it is read.
struct Reading {
  DeepSpeedFolder folder;
  std::vector<std::unique_ptr<TorchFile>> model, optimizer;  // by rank
  const std::function<bool(const CheckpointTensor&)>& takes;
  const TrainedNames& trained;
  bool with_tensors = true;  // else the values that names would be found by are not read
  CheckpointContents contents;
  Counters counters;
  std::vector<std::string> optimized;         // the parameters that the optimizer trains
  std::map<std::string, std::int64_t> steps;  // of the optimizer, by parameter; absent: the optimizer counts none
  bool has_states = false;                    // of the optimizer, one value an element
  bool partitions_model = false;              // stage 3: the tensors of the model's file have no elements
  std::optional<TorchValue> parameter_groups, loss_scaler;
  std::vector<std::string> notes, weight_notes;

  TorchValue model_root() const { return TorchValue::root_of(*model[0]); }
  std::string where() const { return "checkpoint '" + folder.path.string() + "'"; }
  void note(std::string sentence) { notes.push_back(std::move(sentence)); }

  /// Adds elements [from, from + count) of `flat`, which are those from `offset` on of the parameter.
  void add(const Shape& parameter, const std::string& state, const Flat& flat, std::int64_t from, std::int64_t count,
           std::int64_t offset);
  /// Adds a tensor that has all elements.
  void add_whole(const Shape& parameter, const std::string& state, const TorchValue& value);
  /// Takes over the step that an optimizer has counted for a parameter. Throws RuntimeFault where it does not fit the
  /// counters of the run.
  void set_step(const std::string& parameter, const TorchValue& step);
};

/// The name that Capstan's optimizers have for a state: "exp_avg_sq" for Adagrad's "sum", and otherwise theirs.
std::string state_of(const std::string& theirs);
/// The tensor of a value in one dimension, of a floating-point type.
Flat flat_of(const TorchValue& value);
/// The parameters of a dict of shapes, in its order.
std::vector<Shape> shapes_of(const TorchValue& dict);

// The optimizer's file of each format.
void read_flat_partitions(Reading& reading);       // stages 1 and 2, BF16_Optimizer
void read_parameter_partitions(Reading& reading);  // stage 3
void read_whole_optimizer(Reading& reading);       // stage 0
void read_universal(Reading& reading);

/// Adds the frozen parameters, the buffers and the further names of parameters.
void read_rest_of_model(Reading& reading);

/// The state of a checkpoint of Capstan: counters, loss scale, groups, configuration, client state.
Json run_state(Reading& reading);

}  // namespace capstan::deepspeed
