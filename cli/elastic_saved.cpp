#include "cli/elastic_saved.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "core/text/json.hpp"

namespace capstan::cli {
namespace {

/// Whoever goes on in another launch finds the snapshots' folder as it was.
constexpr const char* kNote = "snapshots/saved.json";

}  // namespace

void note_saved(const WorldFolder& folder, std::int64_t step, const CheckpointName& checkpoint) {
  Json note = Json::object();
  note["step"] = step;
  note["dir"] = checkpoint.dir;
  note["tag"] = checkpoint.tag;
  const std::filesystem::path file = folder.path() / kNote, aside = file.string() + ".new";
  std::ofstream out(aside);
  out << note.dump();
  out.close();
  std::error_code ignored;
  if (out) std::filesystem::rename(aside, file, ignored);
}

std::optional<CheckpointName> last_saved(const WorldFolder& folder, Communicator& ranks) {
  std::int64_t newest = -1;
  std::optional<CheckpointName> found;
  for (const std::string& text : ranks.all_gather_text("go on, checkpoints", folder.read(kNote))) {
    if (text.empty()) continue;
    const Json note = Json::parse(text);
    if (note.at("step").as_integer() <= newest) continue;
    newest = note.at("step").as_integer();
    found = CheckpointName{note.at("dir").as_string(), note.at("tag").as_string()};
  }
  return found;
}

}  // namespace capstan::cli
