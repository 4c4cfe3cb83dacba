#pragma once

#include <filesystem>
#include <vector>

namespace capstan {

/// The files of a checkpoint that DeepSpeed wrote, by rank.
struct DeepSpeedFolder {
  std::filesystem::path path;
  std::vector<std::filesystem::path> model_files;      // one; at ZeRO stage 3 one a rank
  std::vector<std::filesystem::path> optimizer_files;  // one a rank; none at ZeRO stage 0
  bool universal = false;                              // a folder of ds_to_universal: zero/<parameter>/<state>.pt
};

/// Whether DeepSpeed wrote the folder: it holds files *_states.pt.
bool is_deepspeed_folder(const std::filesystem::path& folder);

/// Throws RuntimeFault naming the folder: files of tensor, pipeline or expert parallelism, states on NVMe, ranks that
/// are missing or there twice.
DeepSpeedFolder find_deepspeed_files(const std::filesystem::path& folder);

}  // namespace capstan
