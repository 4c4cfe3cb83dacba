#include "core/checkpoint/checkpoint_name.hpp"

#include <filesystem>

namespace capstan {
namespace {

namespace fs = std::filesystem;

/// Whether the folder is a checkpoint itself: Capstan's, torch.distributed.checkpoint's or DeepSpeed's.
bool is_tag(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || fs::exists(folder / "latest", error)) return false;
  if (fs::exists(folder / "index.json", error) && fs::exists(folder / "state.json", error)) return true;
  if (fs::exists(folder / ".metadata", error)) return true;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().filename().string().ends_with("_states.pt")) return true;
  }
  return false;
}

}  // namespace

CheckpointName CheckpointName::parse(const std::string& text) {
  // Messages join the folder and a name by a slash.
  const auto folder = [](std::string dir) {
    while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
    return dir;
  };
  const auto colon = text.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || fs::is_directory(text, error)) {
    const fs::path whole(folder(text));
    // A tag never begins with a dot: "." and ".." are folders of checkpoints.
    if (whole.filename().string().starts_with('.') || !is_tag(whole)) return {folder(text), ""};
    return {whole.has_parent_path() ? whole.parent_path().string() : ".", whole.filename().string()};
  }
  return {folder(text.substr(0, colon)), text.substr(colon + 1)};
}

}  // namespace capstan
