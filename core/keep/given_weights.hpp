#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/keep/mapped_weights.hpp"
#include "core/model/model.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {

/// Values for tensors of a model, by the names that they have there. They stay in their files until elements are taken.
using GivenWeights = std::map<std::string, SafetensorsEntry>;

/// The weights of a checkpoint, DIR or DIR:TAG, by the model's names. They stay in `contents` until they are taken.
/// `takes_files`: with the files that it carries. Throws RuntimeFault.
GivenWeights checkpoint_weights(const std::string& path, bool takes_files, const Model& model,
                                CheckpointContents& contents);

/// Takes the values over: masters, frozen parameters, and what is not of floating point or a buffer. What has none
/// given stays. Shapes must fit. `mapped`: takes what it can first; null: all values are copied.
void take_weights(const GivenWeights& given, const Model& model, ParameterStore& store,
                  MappedWeights* mapped = nullptr);

}  // namespace capstan
