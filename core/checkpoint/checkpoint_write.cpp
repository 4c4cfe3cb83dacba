#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/elastic/save_fence.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

std::string rank_file(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank_%05d.safetensors", rank);
  return name;
}

/// A folder that is deleted unless it was handed on.
class FolderAside {
 public:
  explicit FolderAside(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    fs::remove_all(path_, error);
    create_folders(path_);
  }
  ~FolderAside() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  FolderAside(const FolderAside&) = delete;
  FolderAside& operator=(const FolderAside&) = delete;
  const fs::path& path() const { return path_; }
  void hand_on() { path_.clear(); }

 private:
  fs::path path_;
};

bool is_whole(const CheckpointTensor& tensor) {
  return tensor.offset == 0 && tensor.values.numel() == elements_of(tensor.shape);
}

/// "exp_avg/blocks.0.ln1.weight", with "@<offset>" behind a part of it.
std::string name_in_file(const CheckpointTensor& tensor) {
  const std::string name = tensor.state + "/" + tensor.parameter;
  return is_whole(tensor) ? name : name + "@" + std::to_string(tensor.offset);
}

std::vector<SafetensorsEntry> entries_of(const std::vector<CheckpointTensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& tensor : tensors) {
    const std::int64_t all = elements_of(tensor.shape);
    if (tensor.offset < 0 || tensor.values.numel() > all - tensor.offset) {
      throw std::logic_error("checkpoint: " + tensor.state + " of '" + tensor.parameter +
                             "': the part exceeds the shape");
    }
    // A whole tensor keeps its shape, so that any reader of safetensors shows it as it is.
    entries.push_back({name_in_file(tensor),
                       is_whole(tensor) ? tensor.values.reshape(tensor.shape) : tensor.values.reshape({-1}),
                       tensor.read});
  }
  return entries;
}

/// The folder that a leader has made on this rank's node. Where several lead, each on a node, only one of theirs is
/// here, in the folder of checkpoints that this rank knows.
fs::path folder_here(const fs::path& dir, const std::vector<std::string>& made) {
  std::error_code error;
  std::string absent;
  const bool several = std::count_if(made.begin(), made.end(), [](const auto& one) { return !one.empty(); }) > 1;
  for (const std::string& folder : made) {
    if (folder.empty()) continue;
    // An elastic run writes in a folder of its generation.
    const fs::path parent = fs::path(folder).parent_path();
    const bool elsewhere = several && parent != dir && parent.parent_path() != dir;
    if (!elsewhere && fs::is_directory(folder, error)) return folder;
    absent += (absent.empty() ? "'" : ", '") + folder + "'";
  }
  throw RuntimeFault("checkpoint folder " + absent +
                     ", which another rank has made, is not there: all ranks, or with "
                     "checkpoint.use_node_local_storage all ranks of a node, must see the same file system.");
}

/// Writes this rank's file and tells what is in it.
CheckpointIndex write_part(const fs::path& folder, const std::string& tag, const CheckpointContents& contents,
                           int rank) {
  const std::string file = rank_file(rank);
  const SafetensorsWritten written = write_safetensors(folder / file, entries_of(contents.tensors));
  CheckpointIndex index;
  index.tag = tag;
  index.files.push_back({file, written.bytes, written.header.end, written.header.xxh3});
  for (const auto& tensor : contents.tensors) {
    const std::string name = name_in_file(tensor);
    const SafetensorsPlace& place = written.tensors.at(name);
    index.tensors.push_back({tensor.parameter, tensor.state, tensor.values.scalar_type(), tensor.shape, tensor.offset,
                             tensor.values.numel(), file, name, place.begin, place.end, place.xxh3});
  }
  return index;
}

/// The rest, once all ranks' files are written.
void write_index(const fs::path& folder, const std::string& tag, const std::string& state,
                 const std::vector<std::string>& parts) {
  CheckpointIndex index;
  index.tag = tag;
  index.state_bytes = state.size();
  index.state_xxh3 = xxh3(state.data(), state.size());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    CheckpointIndex part = parse_index_part(parts[rank], "rank " + std::to_string(rank) + "'s part");
    for (auto& file : part.files) index.files.push_back(std::move(file));
    for (auto& tensor : part.tensors) index.tensors.push_back(std::move(tensor));
  }
  write_file(folder / kStateName, state);
  write_file(folder / kIndexName, index_text(index));
  sync_folder(folder);
}

void refuse_foreign_folder(const fs::path& place) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(place, error)) || fs::exists(place / kIndexName, error)) return;
  if (fs::is_directory(place, error) && fs::is_empty(place, error)) return;
  throw RuntimeFault("checkpoint '" + place.string() +
                     "': something is there already that is not a checkpoint of this program. Choose another tag or "
                     "folder, or move it away.");
}

/// Does this rank's share of a phase and waits for the others' shares. Returns what each of them has to tell.
std::vector<std::string> together(const CheckpointRank& rank, const char* phase,
                                  const std::function<std::string()>& share) {
  constexpr char kDone = '+', kFailed = '-';
  std::string text;
  try {
    text = kDone + share();
  } catch (const std::exception& error) {
    text = kFailed + std::string(error.what());
  }
  std::vector<std::string> texts = rank.gather(std::string("save_checkpoint, ") + phase, text);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    if (texts[r].front() != kFailed) continue;
    throw RuntimeFault((texts.size() > 1 ? "rank " + std::to_string(r) + ": " : "") + texts[r].substr(1));
  }
  for (std::string& one : texts) one.erase(0, 1);
  return texts;
}

void write_behind_fence(const fs::path& dir, const std::string& tag, const CheckpointContents& contents,
                        const CheckpointRank& rank, const SaveToken& token) {
  std::optional<FolderLock> lock;
  std::optional<FolderAside> aside;
  fs::path old, fence;
  const auto begun = together(rank, "folder", [&]() -> std::string {
    if (!rank.leads) return "";
    create_folders(dir);
    // A process of an older generation that stands still may hold the lock for ever: the fence keeps it out.
    fence = enter_save_fence(dir, token);
    lock.emplace(dir, !token.run.empty());
    // Without a lock another process's save could be under way.
    if (lock->held()) remove_leftovers(dir);
    refuse_foreign_folder(dir / tag);
    aside.emplace(path_aside(fence, tag));
    return aside->path().string();
  });
  const auto parts = together(
      rank, "tensors", [&] { return index_text(write_part(folder_here(dir, begun), tag, contents, rank.rank)); });
  const std::string state =
      together(rank, "state", [&] { return rank.rank == 0 ? state_text(contents.state) : std::string(); }).front();
  together(rank, "index", [&]() -> std::string {
    if (rank.leads) write_index(aside->path(), tag, state, parts);
    return "";
  });
  together(rank, "place", [&]() -> std::string {
    if (!rank.leads) return "";
    old = put_in_place(aside->path(), dir, tag);
    aside->hand_on();
    return "";
  });
  together(rank, "latest", [&]() -> std::string {
    if (!rank.leads) return "";
    write_latest(dir, tag, fence);
    std::error_code error;
    if (!old.empty()) fs::remove_all(old, error);
    if (error)
      log::warning("'" + old.string() + "', the checkpoint replaced, cannot be deleted: " + error.message() + ".");
    return "";
  });
}

}  // namespace

void write_checkpoint(const fs::path& dir, const std::string& tag, const CheckpointContents& contents,
                      const CheckpointRank& rank) {
  check_tag(tag);
  const SaveToken token = save_token();
  try {
    write_behind_fence(dir, tag, contents, rank, token);
  } catch (const RuntimeFault&) {
    check_save_fence(dir, token);  // what it has written is perhaps gone because a newer generation saves there
    throw;
  }
}

void write_checkpoint(const fs::path& dir, const std::string& tag, const CheckpointContents& contents) {
  write_checkpoint(dir, tag, contents, {0, true, [](const std::string&, const std::string& text) {
                                          return std::vector<std::string>{text};
                                        }});
}

}  // namespace capstan
