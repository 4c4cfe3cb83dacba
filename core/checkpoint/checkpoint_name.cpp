#include "core/checkpoint/checkpoint_name.hpp"

#include <filesystem>

namespace capstan {

CheckpointName CheckpointName::parse(const std::string& text) {
  // Messages join the folder and a name by a slash.
  const auto folder = [](std::string dir) {
    while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
    return dir;
  };
  const auto colon = text.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || std::filesystem::is_directory(text, error)) return {folder(text), ""};
  return {folder(text.substr(0, colon)), text.substr(colon + 1)};
}

}  // namespace capstan
