#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace capstan {

/// trainer_state.json of a folder checkpoint-<N> that the Trainer of transformers has saved. The checkpoint of
/// DeepSpeed in such a folder has the weights and the optimizer.
struct TrainerState {
  std::int64_t step = 0;        // global_step: updates of the optimizer
  std::optional<double> epoch;  // of the data; absent: the Trainer has written none
  std::string best;             // the name of the folder with the best evaluation; empty: none has been found
};

/// N of the folder's name checkpoint-<N>; -1 for other names.
std::int64_t trainer_step_of(const std::string& name);

/// Whether the folder holds trainer_state.json.
bool is_trainer_folder(const std::filesystem::path& folder);

/// Nothing where the folder has no such file. Throws RuntimeFault naming the file and what is wrong with it.
std::optional<TrainerState> read_trainer_state(const std::filesystem::path& folder);

}  // namespace capstan
