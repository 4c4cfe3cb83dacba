#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/checkpoint/torch_file/torch_value.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A value as JSON: tensors as lists of numbers, tuples as lists, integers beyond 64 bits as texts. Nothing, and why in
/// `defect`, for what JSON cannot hold: objects, bytes, values that hold themselves, more than a million of them.
/// `left`: how many values may still be made in several calls, which each call lowers; null: a call is by itself.
std::optional<Json> json_of(const TorchValue& value, std::string& defect, std::int64_t* left = nullptr);

}  // namespace capstan
