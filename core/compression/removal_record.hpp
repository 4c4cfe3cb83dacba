#pragma once

#include <filesystem>
#include <vector>

#include "core/compression/compressed_weights.hpp"

namespace capstan {

/// compression.json: what was removed from a model that was pruned, as JSON: {"tensors": [{"name", "by", "axis", "of",
/// "kept"}], "model": {"type", "params"}}.
Json removal_record(const std::vector<KeptAxis>& removed, const Json& model);

/// Where the record of exported weights lies: compression.json in a folder, <name>.compression.json beside a file
/// <name>.safetensors.
std::filesystem::path removal_record_of(const std::filesystem::path& weights);

/// Deletes the record of weights that were there before, so that it is not taken for that of the new ones.
void forget_removals(const std::filesystem::path& weights);

/// The parameters of a model that give it the shapes which pruning leaves, as the model itself tells under
/// "pruned_shapes" of its description: {"ff": [{"tensor": "blocks.0.fc.weight", "axis": 0, "per": 1}]}. Throws
/// RuntimeFault where it tells none, PluginError for what contradicts the weights.
Json pruned_params(const CompressedWeights& weights, const Json& description, const std::string& model);

/// Throws RuntimeFault naming each weight that does not have the shape that the model has: something reads what was
/// removed.
void check_pruned_shapes(const CompressedWeights& weights, const Model& model);

}  // namespace capstan
