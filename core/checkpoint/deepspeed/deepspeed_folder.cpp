#include "core/checkpoint/deepspeed/deepspeed_folder.hpp"

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/errors.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStates = "_states.pt";

/// The parts of a file's name.
struct StatesName {
  std::int64_t rank = 0;            // of the data-parallel processes
  std::int64_t model_parallel = 0;  // of the processes that share a model's tensors or layers
  bool of_model = false;            // else of the optimizer
};

std::optional<std::int64_t> take_digits(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take_text(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// [bf16_|fp16_][zero_pp_rank_<R>_]mp_rank_<M>_{model,optim}_states.pt
std::optional<StatesName> states_name(std::string_view name) {
  StatesName found;
  if (!take_text(name, "bf16_")) take_text(name, "fp16_");
  if (take_text(name, "zero_pp_rank_")) {
    const auto rank = take_digits(name);
    if (!rank || !take_text(name, "_")) return std::nullopt;
    found.rank = *rank;
  }
  if (!take_text(name, "mp_rank_")) return std::nullopt;
  const auto parallel = take_digits(name);
  if (!parallel) return std::nullopt;
  found.model_parallel = *parallel;
  found.of_model = name == "_model_states.pt";
  if (!found.of_model && name != "_optim_states.pt" && name != "optim_states.pt") return std::nullopt;
  return found;
}

std::vector<std::string> names_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw RuntimeFault("checkpoint '" + folder.string() + "': " + error.message() + ".");
  return names;
}

std::string refusal_of(const std::string& name) {
  if (name.starts_with("layer_")) return "of pipeline parallelism";
  if (name.find("expert") != std::string::npos || name.starts_with("expp_rank_")) return "of a mixture of experts";
  if (name == "offloaded_tensors") return "of states that were offloaded to NVMe";
  return "";
}

/// The files in the order of their ranks, which go from 0 on.
std::vector<fs::path> in_order(const fs::path& folder, const std::map<std::int64_t, std::string>& by_rank,
                               const char* kind) {
  std::vector<fs::path> files;
  for (const auto& [rank, name] : by_rank) {
    if (rank != static_cast<std::int64_t>(files.size())) {
      throw RuntimeFault("checkpoint '" + folder.string() + "': the file *_" + kind + std::string(kStates) +
                         " of rank " + std::to_string(files.size()) + " is missing: '" + name +
                         "' is there. Copy the files of all ranks into one folder.");
    }
    files.push_back(folder / name);
  }
  return files;
}

}  // namespace

bool is_deepspeed_folder(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().filename().string().ends_with(kStates)) return true;
  }
  return false;
}

DeepSpeedFolder find_deepspeed_files(const fs::path& folder) {
  const std::string where = "checkpoint '" + folder.string() + "': ";
  std::map<std::int64_t, std::string> model, optimizer;
  for (const std::string& name : names_of(folder)) {
    if (const std::string kind = refusal_of(name); !kind.empty()) {
      throw RuntimeFault(where + "'" + name + "' is a file " + kind +
                         ", and checkpoints with such files are not read.");
    }
    if (!name.ends_with("states.pt")) continue;
    const auto found = states_name(name);
    if (!found)
      throw RuntimeFault(where + "'" + name + "' is not the name of a file that DeepSpeed is known to write.");
    if (found->model_parallel > 0) {
      throw RuntimeFault(
          where + "'" + name +
          "' is a file of tensor or pipeline parallelism, and checkpoints with such files are not read.");
    }
    const auto [place, added] = (found->of_model ? model : optimizer).emplace(found->rank, name);
    if (!added) {
      throw RuntimeFault(where + "'" + place->second + "' and '" + name +
                         "' are files of one rank. Delete the one that is left of another run.");
    }
  }
  if (model.empty()) throw RuntimeFault(where + "it has no file *_model_states.pt, which holds counters and buffers.");
  std::error_code error;
  return {folder, in_order(folder, model, "model"), in_order(folder, optimizer, "optim"),
          fs::is_directory(folder / "zero", error)};
}

}  // namespace capstan
