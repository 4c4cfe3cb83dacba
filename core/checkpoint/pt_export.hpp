#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.hpp"

namespace capstan {

/// Further names of tensors: "head.weight" -> "embed.weight".
using TiedNames = std::map<std::string, std::string>;

/// Writes a dictionary of tensors, in the order given, and behind them under the names in `tied`, that
/// `torch.load(path, weights_only=True)` opens. Written aside, synced and renamed, so that an older file stays whole
/// until then.
///
/// Tensors that are the same (tied weights) are written once and are tied again when read; every other one is written
/// by itself, so a view takes no more room than its own elements. One with `read` is in memory, whole, while it is
/// written. Throws RuntimeFault, and what `read` throws.
/// `tied`: its names are not among the tensors', and what they stand for is.
void export_pt(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& tensors,
               const TiedNames& tied = {});

}  // namespace capstan
