#include "core/checkpoint/trainer_folder.hpp"

#include <charconv>
#include <string_view>
#include <system_error>

#include "core/checkpoint/state_text.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan {
namespace {

constexpr const char* kTrainerState = "trainer_state.json";

/// Python writes NaN and Infinity, which JSON lacks, where a loss was that: null in their place.
std::string without_nan(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    std::size_t word = 0;
    if (!quoted) {
      for (const std::string_view name : {"NaN", "-Infinity", "Infinity"}) {
        if (word == 0 && rest.starts_with(name)) word = name.size();
      }
    }
    if (word > 0) {
      out += "null";
      i += word;
      continue;
    }
    const std::size_t taken = quoted && text[i] == '\\' && i + 1 < text.size() ? 2 : 1;
    if (text[i] == '"') quoted = !quoted;
    out += text.substr(i, taken);
    i += taken;
  }
  return out;
}

}  // namespace

std::int64_t trainer_step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? step : -1;
}

bool is_trainer_folder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::is_regular_file(folder / kTrainerState, error);
}

std::optional<TrainerState> read_trainer_state(const std::filesystem::path& folder) {
  if (!is_trainer_folder(folder)) return std::nullopt;
  const std::filesystem::path path = folder / kTrainerState;
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const Json json = parse_state(without_nan(text), "'" + path.string() + "'");
  TrainerState state;
  const Json* step = json.find("global_step");
  if (step == nullptr || !step->is_integer() || step->as_integer() < 0) {
    throw RuntimeFault("'" + path.string() + "': global_step must be a number of steps, and is " +
                       (step == nullptr ? "missing" : step->dump()) + ". Take another checkpoint of the run.");
  }
  state.step = step->as_integer();
  const Json* epoch = json.find("epoch");
  if (epoch != nullptr && epoch->is_number()) state.epoch = epoch->as_number();
  const Json* best = json.find("best_model_checkpoint");
  if (best != nullptr && best->is_string()) state.best = std::filesystem::path(best->as_string()).filename().string();
  return state;
}

}  // namespace capstan
