#pragma once

#include <filesystem>
#include <functional>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan {

/// Reads the folder of a tag that DeepSpeed 0.14 to 0.19 wrote, without DeepSpeed and without running a pickle: ZeRO
/// stages 0 to 3, BF16_Optimizer, elastic and universal checkpoints. Parameters have fp32 masters where the files have
/// them, else the values that the model computed with. The state is that of a checkpoint of Capstan with "written_by",
/// and a list kNotes of what cannot be taken over; it has no states of random number generators. The state of a
/// schedule that the program handed over is the member "deepspeed.lr_scheduler" of the client state. Without tensors
/// the optimizer of ZeRO stage 0 is not looked into. Other arguments and errors: read_checkpoint().
CheckpointContents read_deepspeed(const std::filesystem::path& folder,
                                  const std::function<bool(const CheckpointTensor&)>& takes,
                                  const TrainedNames& trained, bool with_tensors = true);

}  // namespace capstan
