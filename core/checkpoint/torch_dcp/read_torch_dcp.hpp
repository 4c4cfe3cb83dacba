#pragma once

#include <filesystem>
#include <functional>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan {

/// Whether torch.distributed.checkpoint wrote the folder: it holds the file .metadata.
bool is_torch_dcp_folder(const std::filesystem::path& folder);

/// Reads the folder of a save of torch.distributed.checkpoint (FSDP and others), without running a pickle. Tensors of
/// the model's state dict become parameters, also those that are buffers: who knows the model tells which. States under
/// "state" of an optimizer that get_state_dict() has given names become states of the parameters, "step" a whole
/// number. The state is that of a checkpoint of Capstan with "written_by"; the steps of the run are those of the
/// optimizer, and there is no "global_samples". Other values become the client state, and kNotes lists what cannot be
/// taken over. Arguments and errors: read_checkpoint().
CheckpointContents read_torch_dcp(const std::filesystem::path& folder,
                                  const std::function<bool(const CheckpointTensor&)>& takes);

/// Compares all items of the folder with the CRC-32 of their records, also those that read_torch_dcp() leaves out.
/// Throws RuntimeFault naming the file and what is wrong.
void verify_torch_dcp(const std::filesystem::path& folder);

}  // namespace capstan
