#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace capstan {

/// Who may have put something into a file or folder from which code is about to be loaded.
struct Trust {
  std::string refusal;  // a sentence that opens with the path; empty when it may be used
  std::string warning;  // a sentence: it, or a folder on the way to it, is group-writable
};

/// Refuses what everybody may write to, and what belongs to neither root nor this user. The same holds for every folder
/// in which a name of the path is looked up, also behind links: who may write there decides what the path leads to. On
/// the way, a folder with the sticky bit, such as /tmp, may be open to everybody: there, nobody but its owner can
/// replace what this user owns. Follows links. `what` is "file" or "folder".
Trust check_trust(const std::filesystem::path& path, const std::string& what);

/// The same for a file that stands in a folder which was found to be safe.
Trust check_trust_inside(const std::filesystem::path& file);

/// The name of an account, "root", or "user 54321" for one without a name.
std::string user_name(uid_t user);

}  // namespace capstan
