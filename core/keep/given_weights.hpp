#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "core/model/model.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {

/// Values for tensors of a model, by the names that they have there. They stay in their files until elements are taken.
using GivenWeights = std::map<std::string, SafetensorsEntry>;

/// Takes the values over: masters, frozen parameters, and what is not of floating point or a buffer. What has none
/// given stays. Shapes must fit.
void take_weights(const GivenWeights& given, const Model& model, ParameterStore& store);

}  // namespace capstan
