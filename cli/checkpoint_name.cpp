#include "cli/checkpoint_name.hpp"

#include <filesystem>

namespace capstan::cli {

CheckpointName CheckpointName::parse(const std::string& text) {
  const auto colon = text.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || std::filesystem::is_directory(text, error)) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

}  // namespace capstan::cli
