#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace capstan {

// Names in a checkpoint folder beside the tags, `latest` and `best`. A tag never begins with a dot.
//   .<tag>.partial-<pid>   being written, or taken out of use and being deleted
//   .<tag>.replaced        the old one while a new one takes its place, where the file system cannot swap the two
//   .latest.partial-<pid>  the next `latest`; .best.partial-<pid> likewise
//   .run-<run>-<term>-<generation>/, .run-<run>.left
//                          what an elastic run is writing, and that another run has kept one out: save_fence.hpp

inline constexpr const char* kIndexName = "index.json";
inline constexpr const char* kStateName = "state.json";
inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kBestName = "best";

/// Keeps others from saving into the folder for as long as it lives. Where the file system has no locks it holds none.
class FolderLock {
 public:
  /// Throws RuntimeFault when another save holds it for a second, unless it `may_be_taken`: then it is not held.
  explicit FolderLock(const std::filesystem::path& dir, bool may_be_taken = false);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

/// Throws RuntimeFault when `tag` cannot be the name of a checkpoint's folder.
void check_tag(const std::string& tag);

/// A path of this process's own beside the tag, to write to or to move it to.
std::filesystem::path path_aside(const std::filesystem::path& dir, const std::string& name);

/// Removes what saves that died have left, and puts back a checkpoint whose replacement did not get through. Only under
/// a held FolderLock.
void remove_leftovers(const std::filesystem::path& dir);

/// Moves the finished folder `aside` to <dir>/<tag>, swapping it with one that is there already; that one is then at
/// the path returned (empty when there was none), for the caller to delete once `latest` is written.
std::filesystem::path put_in_place(const std::filesystem::path& aside, const std::filesystem::path& dir,
                                   const std::string& tag);

/// Moves a checkpoint out of its name to a path of this process's own in `place`, and syncs the folder: a checkpoint
/// that is half deleted must not look like one. Returns that path; empty where the checkpoint is gone already.
std::filesystem::path move_out(const std::filesystem::path& dir, const std::filesystem::path& place,
                               const std::string& tag);

/// Deletes a file or a folder; what cannot be deleted is a warning.
void remove_or_warn(const std::filesystem::path& path);

/// The names in a folder. Throws RuntimeFault.
std::vector<std::string> folder_names(const std::filesystem::path& dir);

/// The tags to which saves write, or that saves which died have left half written.
std::vector<std::string> unfinished_names(const std::filesystem::path& dir);

/// The tag that the file <dir>/<name> holds. Throws RuntimeFault.
std::string tag_in_file(const std::filesystem::path& dir, const char* name);

/// Writes `latest` aside in the folder `from`, syncs it, renames it, syncs the folder.
void write_latest(const std::filesystem::path& dir, const std::string& tag, const std::filesystem::path& from);

/// The folder of a tag. Throws RuntimeFault, naming the checkpoints that are there, when it is none of ours.
std::filesystem::path find_checkpoint(const std::filesystem::path& dir, const std::string& tag);

/// Tags of the folders in `dir` that have an index, by step where they are called global_step<N>, then by name.
std::vector<std::string> checkpoint_tags(const std::filesystem::path& dir);

/// Tags as checkpoint_tags() gives them, with those of DeepSpeed's checkpoints and torch.distributed.checkpoint's.
std::vector<std::string> readable_tags(const std::filesystem::path& dir);

/// The name of the checkpoint in `dir` that `latest` names, or the furthest one, whoever wrote it; "latest" where that
/// file is there and names none. Empty where there is no checkpoint, nor such a folder.
std::string checkpoint_there(const std::filesystem::path& dir);

/// N of "global_step<N>", -1 for other names.
std::int64_t step_of(const std::string& tag);

}  // namespace capstan
