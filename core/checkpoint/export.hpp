#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/hf_folder.hpp"
#include "core/text/json.hpp"

namespace capstan {

enum class ExportFormat { kPt, kSafetensors };

/// The parameters of a checkpoint that compressions have trained beside the model's, by its state.json. Throws
/// RuntimeFault that begins with `where` for a list that is none.
std::set<std::string> trained_states(const Json& state, const std::string& where);

/// The weights of a checkpoint that was read from `where`, parameters and buffers, in its order: each a tensor of its
/// full shape that stays in the files, which `contents` has mapped, until it is read; any range of it may be. `dtype`:
/// as for export_checkpoint(). Throws RuntimeFault.
std::vector<SafetensorsEntry> exported_weights(const CheckpointContents& contents, const std::string& where,
                                               std::optional<at::ScalarType> dtype = std::nullopt);

/// Writes the weights of checkpoint <dir>/<tag> to one file of a format that others read: parameters (put together
/// from their parts; the fp32 masters where there are any) and buffers, by name; what differs by rank as rank 0 has it.
/// In kPt a tensor that the model has under several names stands under all of them. `dtype`: the floating-point type to
/// convert to, else as saved; 16 bits of a run at ZeRO stage 3 only if its configuration has
/// zero_optimization.stage3_gather_16bit_weights_on_model_save. The checkpoint is mapped, and no more than one tensor
/// is converted at a time. Throws RuntimeFault.
void export_checkpoint(const std::filesystem::path& dir, const std::string& tag, ExportFormat format,
                       const std::filesystem::path& out, std::optional<at::ScalarType> dtype = std::nullopt);

/// Writes the weights of a checkpoint as a folder of transformers, with the files of carried_files_of(). `format_of`
/// gets the configuration that the checkpoint was saved with, and says how the weights are called there. Throws
/// RuntimeFault, and what `format_of` throws.
void export_hf(const std::filesystem::path& dir, const std::string& tag,
               const std::function<HfFormat(const Json& config)>& format_of, const std::filesystem::path& out,
               std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace capstan
