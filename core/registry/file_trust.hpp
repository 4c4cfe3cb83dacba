#pragma once

#include <filesystem>
#include <string>

namespace capstan {

/// Who may have put something into a file or folder from which code is about to be loaded.
struct Trust {
  std::string refusal;  // a sentence that opens with the path; empty when it may be used
  std::string warning;  // group-writable
};

/// Refuses what everybody may write to, and what belongs to neither root nor this user. Follows links. `what` is "file"
/// or "folder".
Trust check_trust(const std::filesystem::path& path, const std::string& what);

}  // namespace capstan
