#include "core/checkpoint/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <system_error>
#include <thread>
#include <tuple>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/deepspeed/deepspeed_folder.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/torch_dcp/read_torch_dcp.hpp"
#include "core/data/mapped_file.hpp"
#include "core/elastic/save_fence.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

constexpr int kLockTries = 50;
constexpr std::chrono::milliseconds kLockPause{20};
constexpr std::string_view kPartial = ".partial-", kReplaced = ".replaced";

fs::path replaced_path(const fs::path& dir, const std::string& tag) {
  return dir / ("." + tag + std::string(kReplaced));
}

/// Whether path_aside gave the name, in whatever process.
bool is_partial(const std::string& name) {
  const auto digits = name.find_last_not_of("0123456789") + 1;
  return name.starts_with('.') && digits < name.size() && std::string_view(name).substr(0, digits).ends_with(kPartial);
}

std::string tags_text(const fs::path& dir) {
  std::error_code error;
  std::string text;
  if (!fs::is_directory(dir, error)) return text;
  for (const auto& tag : readable_tags(dir)) text += (text.empty() ? "" : ", ") + tag;
  return text.empty() ? "" : " Checkpoints there: " + text + ".";
}

}  // namespace

std::vector<std::string> folder_names(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(dir, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw RuntimeFault("checkpoints in '" + dir.string() + "': " + error.message() + ".");
  return names;
}

void remove_or_warn(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    log::warning("'" + path.string() + "' is left of an older checkpoint and cannot be deleted: " + error.message() +
                 ".");
  }
}

FolderLock::FolderLock(const fs::path& dir, bool may_be_taken)
    : descriptor_(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) {
    throw RuntimeFault("checkpoints in '" + dir.string() + "': " + std::generic_category().message(errno) + ".");
  }
  // capstan checkpoint prune holds it for a rename.
  int error = 0;
  for (int tries = 0; tries < kLockTries; ++tries) {
    held_ = flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    error = held_ ? 0 : errno;  // the pause may change errno
    if (error != EWOULDBLOCK || may_be_taken) break;
    std::this_thread::sleep_for(kLockPause);
  }
  if (error == EWOULDBLOCK && !may_be_taken) {
    close(descriptor_);
    throw RuntimeFault("checkpoints in '" + dir.string() +
                       "': another process is saving there at this moment. Give each run a folder of its own.");
  }
}

FolderLock::~FolderLock() { close(descriptor_); }

void check_tag(const std::string& tag) {
  if (tag.empty() || tag.starts_with('.') || tag.find_first_of("/\n") != std::string::npos || tag.size() > 200 ||
      tag == kLatestName) {
    throw RuntimeFault("checkpoint tag '" + tag +
                       "': it names a folder, so it must not be empty, hold '/' or a line break, begin with '.', be "
                       "longer than 200 bytes or be 'latest'.");
  }
}

fs::path path_aside(const fs::path& dir, const std::string& name) {
  return dir / ("." + name + std::string(kPartial) + std::to_string(getpid()));
}

void remove_leftovers(const fs::path& dir) {
  for (const auto& name : folder_names(dir)) {
    if (is_partial(name)) {
      remove_or_warn(dir / name);
    } else if (name.starts_with('.') && name.ends_with(kReplaced)) {
      const fs::path tag = dir / name.substr(1, name.size() - 1 - kReplaced.size());
      if (is_there(tag)) {
        remove_or_warn(dir / name);
      } else {
        rename_synced(dir / name, tag);
      }
    }
  }
}

std::vector<std::string> unfinished_names(const fs::path& dir) {
  std::vector<std::string> tags;
  const auto add = [&](const fs::path& place) {
    for (const std::string& name : folder_names(place)) {
      if (!is_partial(name) || !is_there(place / name)) continue;
      const std::string tag = name.substr(1, name.rfind(kPartial) - 1);
      if (tag != kLatestName && tag != kBestName) tags.push_back(tag);
    }
  };
  add(dir);
  std::error_code error;
  for (const std::string& name : folder_names(dir)) {
    if (name.starts_with(".run-") && fs::is_directory(dir / name, error)) add(dir / name);
  }
  return tags;
}

fs::path move_out(const fs::path& dir, const fs::path& place, const std::string& tag) {
  if (!is_there(dir / tag)) return {};
  fs::path aside = path_aside(place, tag);
  rename_synced(dir / tag, aside);
  sync_folder(dir);
  return aside;
}

fs::path put_in_place(const fs::path& aside, const fs::path& dir, const std::string& tag) {
  const fs::path place = dir / tag;
  if (!is_there(place)) {
    rename_synced(aside, place);
    return {};
  }
  if (renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(dir);
    return aside;
  }
  if (errno == ENOENT) throw RuntimeFault("'" + aside.string() + "' is not there any more.");
  // No swap on this file system. Between the two renames the tag is found under the other name, see find_checkpoint.
  const fs::path old = replaced_path(dir, tag);
  rename_synced(place, old);
  try {
    rename_synced(aside, place);
  } catch (const RuntimeFault&) {
    rename_synced(old, place);
    throw;
  }
  return old;
}

namespace {

/// Writes the file `name` of `dir`, which names `tag`, aside in the folder `from`.
void write_name(const fs::path& dir, const char* name, const std::string& tag, const fs::path& from) {
  const fs::path next = path_aside(from, name);
  write_file(next, tag);
  rename_synced(next, dir / name);
}

}  // namespace

void write_latest(const fs::path& dir, const std::string& tag, const fs::path& from) {
  write_name(dir, kLatestName, tag, from);
}

fs::path find_checkpoint(const fs::path& dir, const std::string& tag) {
  check_tag(tag);
  const std::string where = "checkpoint '" + (dir / tag).string() + "': ";
  const fs::path candidates[] = {dir / tag, replaced_path(dir, tag)};
  for (const auto& folder : candidates) {
    if (is_there(folder / kIndexName)) return folder;
  }
  std::error_code error;
  if (!fs::is_directory(dir / tag, error)) throw RuntimeFault(where + "there is no such folder." + tags_text(dir));
  throw RuntimeFault(where + "it has no file '" + kIndexName + "', so it is not a checkpoint." + tags_text(dir));
}

std::int64_t step_of(const std::string& tag) {
  constexpr std::string_view kPrefix = "global_step";
  if (!tag.starts_with(kPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = tag.data() + tag.size();
  const auto [stop, error] = std::from_chars(tag.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? step : -1;
}

namespace {

std::vector<std::string> tags_that(const fs::path& dir, const std::function<bool(const fs::path& folder)>& count) {
  std::vector<std::string> tags;
  for (const auto& name : folder_names(dir)) {
    if (!name.starts_with('.') && count(dir / name)) tags.push_back(name);
  }
  std::sort(tags.begin(), tags.end(), [](const auto& a, const auto& b) {
    return std::tuple(step_of(a), std::string_view(a)) < std::tuple(step_of(b), std::string_view(b));
  });
  return tags;
}

bool has_index(const fs::path& folder) { return is_there(folder / kIndexName); }

}  // namespace

std::vector<std::string> checkpoint_tags(const fs::path& dir) { return tags_that(dir, has_index); }

std::vector<std::string> readable_tags(const fs::path& dir) {
  return tags_that(dir, [](const fs::path& folder) {
    return has_index(folder) || is_deepspeed_folder(folder) || is_torch_dcp_folder(folder);
  });
}

std::string checkpoint_there(const fs::path& dir) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) return "";
  std::string found;
  for (const auto& name : folder_names(dir)) {
    // One whose replacement was cut off is a checkpoint too; one that another program wrote has no index.
    const bool replaced = name.starts_with('.') && name.ends_with(kReplaced);
    const std::string tag = replaced ? name.substr(1, name.size() - 1 - kReplaced.size()) : name;
    const bool is_of_others =
        step_of(tag) >= 0 && fs::is_directory(dir / name, error) && !fs::is_empty(dir / name, error);
    const bool is_one = is_there(dir / name / kIndexName) || is_of_others;
    if (is_one && !is_partial(name) && (found.empty() || step_of(tag) > step_of(found))) found = tag;
  }
  if (!is_there(dir / kLatestName)) return found;
  try {
    return latest_tag(dir);
  } catch (const RuntimeFault&) {
    return kLatestName;
  }
}

std::string tag_in_file(const fs::path& dir, const char* name) {
  const MappedFile file(dir / name);
  std::string tag(reinterpret_cast<const char*>(file.data()), file.size());
  tag.erase(tag.find_last_not_of(" \t\r\n") + 1);
  try {
    check_tag(tag);
  } catch (const RuntimeFault&) {
    throw RuntimeFault("checkpoints in '" + dir.string() + "': the file '" + name +
                       "' does not hold a checkpoint's name." + tags_text(dir));
  }
  return tag;
}

std::string latest_tag(const fs::path& dir) {
  const std::string where = "checkpoints in '" + dir.string() + "': ";
  std::error_code error;
  if (!fs::is_directory(dir, error)) throw RuntimeFault(where + "there is no such folder.");
  if (!is_there(dir / kLatestName))
    throw RuntimeFault(where + "there is no file 'latest' to tell which." + tags_text(dir));
  return tag_in_file(dir, kLatestName);
}

std::string best_tag(const fs::path& dir) {
  std::error_code error;
  return fs::is_regular_file(dir / kBestName, error) ? tag_in_file(dir, kBestName) : "";
}

std::string tag_named(const fs::path& dir, const std::string& tag) {
  const std::string best = tag == kBestName ? best_tag(dir) : "";
  return best.empty() ? tag : best;
}

std::string tag_of(const CheckpointName& name) {
  return name.tag.empty() ? latest_tag(name.dir) : tag_named(name.dir, name.tag);
}

void note_best(const fs::path& dir, const std::string& tag) {
  const SaveToken token = save_token();
  const fs::path place = enter_save_fence(dir, token);
  const FolderLock lock(dir, !token.run.empty());
  std::error_code error;
  if (fs::is_directory(dir / kBestName, error)) {
    throw RuntimeFault(
        "checkpoints in '" + dir.string() + "': '" + kBestName +
        "' is a folder, and capstan.run.keep_best writes a file of that name. Save into another folder.");
  }
  write_name(dir, kBestName, tag, place);
}

void prune_checkpoints(const fs::path& dir, std::int64_t keep, const std::set<std::string>& own) {
  if (keep <= 0) return;
  const SaveToken token = save_token();
  // A process of an older generation that wakes would delete checkpoints of a newer one. Its fence has been moved away
  // by then, so that its renames into the fence fail.
  const fs::path place = enter_save_fence(dir, token);
  const FolderLock lock(dir, !token.run.empty());
  const std::string latest = is_there(dir / kLatestName) ? latest_tag(dir) : "", best = best_tag(dir);
  auto tags = checkpoint_tags(dir);
  std::erase_if(tags, [&](const auto& tag) { return step_of(tag) < 0 || !own.contains(tag); });
  auto excess = static_cast<std::int64_t>(tags.size()) - keep;
  for (const auto& tag : tags) {
    if (excess <= 0) break;
    if (tag == latest || tag == best) continue;
    if (const fs::path doomed = move_out(dir, place, tag); !doomed.empty()) remove_or_warn(doomed);
    --excess;
  }
}

}  // namespace capstan
