#include "core/run/elastic_saved.hpp"

#include <filesystem>
#include <string>

#include "core/elastic/own_folder.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/json.hpp"

namespace capstan {
namespace {

/// In the snapshots' folder, which a launch that goes on takes over as it is.
constexpr const char* kNote = "saved.json";

}  // namespace

void note_saved(const WorldFolder& folder, std::int64_t step, const CheckpointName& checkpoint) {
  Json note = Json::object();
  note["step"] = step;
  note["dir"] = checkpoint.dir;
  note["tag"] = checkpoint.tag;
  try {
    OwnFolder(folder.snapshots()).write(kNote, note.dump());
  } catch (const RuntimeFault& fault) {
    // Processes without a launcher remove the folder once they have saved.
    if (!std::filesystem::exists(folder.path())) return;
    log::warning(std::string("elasticity: a run that has lost its snapshots would not find '") + checkpoint.tag +
                 "': " + fault.what());
  }
}

std::optional<SavedStep> last_saved(const WorldFolder& folder, Communicator& ranks) {
  std::optional<SavedStep> found;
  for (const std::string& text :
       ranks.all_gather_text("go on, checkpoints", folder.read(std::string("snapshots/") + kNote))) {
    if (text.empty()) continue;
    const Json note = Json::parse(text);
    const std::int64_t step = note.at("step").as_integer();
    if (found && step <= found->step) continue;
    found = SavedStep{step, {note.at("dir").as_string(), note.at("tag").as_string()}};
  }
  return found;
}

}  // namespace capstan
