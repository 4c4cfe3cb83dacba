#include "cli/elastic_status.hpp"

#include <vector>

#include "cli/numbers.hpp"
#include "cli/table.hpp"
#include "core/elastic/world.hpp"

namespace capstan::cli {
namespace {

std::string counted(std::size_t count, const char* one, const char* several) {
  return grouped(static_cast<std::int64_t>(count)) + " " + (count == 1 ? one : several);
}

std::string head_of(int launcher, const World& world, const WorldFolder::Step& step) {
  std::string text = "launch " + std::to_string(launcher) + ": ";
  if (!world.end.empty()) return text + "ends, because " + world.end;
  if (world.generation == 0)
    return text + "starts " + counted(static_cast<std::size_t>(world.size), "process", "processes");
  text += "generation " + grouped(world.generation) + ", ";
  if (world.members.empty()) return text + "waits for more processes (" + world.change + ")";
  text += counted(world.members.size(), "process trains", "processes train");
  if (!world.waiting.empty()) text += ", " + counted(world.waiting.size(), "waits", "wait");
  if (step.step > 0) {
    text += "; step " + grouped(step.step) + " " + fixed(steady_seconds() - step.at, 1) + " s ago";
  }
  return text + "; " + counted(static_cast<std::size_t>(world.losses), "loss", "losses");
}

}  // namespace

std::string elastic_status() {
  std::string text;
  for (const auto& path : WorldFolder::living()) {
    const WorldFolder folder(path);
    const World world = folder.read();
    text += head_of(WorldFolder::launcher_of(path), world, folder.last_step()) + "\n";
    std::vector<std::vector<std::string>> rows;
    for (std::size_t rank = 0; rank < world.processes.size(); ++rank) {
      rows.push_back({"  rank " + std::to_string(rank), "process " + std::to_string(world.processes[rank])});
    }
    for (const std::int64_t process : world.waiting) rows.push_back({"  waits", "process " + std::to_string(process)});
    text += table_text(rows);
    if (world.generation > 1) text += "  last change: " + world.change + "\n";
  }
  return text.empty() ? "There is no elastic launch of this user on this host.\n" : text;
}

}  // namespace capstan::cli
