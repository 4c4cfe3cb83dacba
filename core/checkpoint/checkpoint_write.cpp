#include <stdexcept>
#include <system_error>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/data/xxh3.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRankFile = "rank_00000.safetensors";

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
    entries.push_back(
        {name_in_file(tensor), is_whole(tensor) ? tensor.values.reshape(tensor.shape) : tensor.values.reshape({-1})});
  }
  return entries;
}

CheckpointIndex index_of(const std::string& tag, const std::vector<CheckpointTensor>& tensors,
                         const SafetensorsWritten& written, const std::string& state) {
  CheckpointIndex index;
  index.tag = tag;
  index.state_bytes = state.size();
  index.state_xxh3 = xxh3(state.data(), state.size());
  index.files.push_back({kRankFile, written.bytes, written.header.end, written.header.xxh3});
  for (const auto& tensor : tensors) {
    const std::string name = name_in_file(tensor);
    const SafetensorsPlace& place = written.tensors.at(name);
    index.tensors.push_back({tensor.parameter, tensor.state, tensor.values.scalar_type(), tensor.shape, tensor.offset,
                             tensor.values.numel(), kRankFile, name, place.begin, place.end, place.xxh3});
  }
  return index;
}

void write_files(const fs::path& folder, const std::string& tag, const CheckpointContents& contents) {
  const auto written = write_safetensors(folder / kRankFile, entries_of(contents.tensors));
  const std::string state = state_text(contents.state);
  write_file(folder / kStateName, state);
  write_file(folder / kIndexName, index_text(index_of(tag, contents.tensors, written, state)));
  sync_folder(folder);
}

void refuse_foreign_folder(const fs::path& place) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(place, error)) || fs::exists(place / kIndexName, error)) return;
  if (fs::is_directory(place, error) && fs::is_empty(place, error)) return;
  throw RuntimeFault("checkpoint '" + place.string() +
                     "': something is there already that is no checkpoint of this program. Choose another tag or "
                     "folder, or move it away.");
}

}  // namespace

void write_checkpoint(const fs::path& dir, const std::string& tag, const CheckpointContents& contents) {
  check_tag(tag);
  create_folders(dir);
  const FolderLock lock(dir);
  // Without a lock another process's save could be under way.
  if (lock.held()) remove_leftovers(dir);
  refuse_foreign_folder(dir / tag);

  FolderAside aside(path_aside(dir, tag));
  write_files(aside.path(), tag, contents);
  const fs::path old = put_in_place(aside.path(), dir, tag);
  aside.hand_on();
  write_latest(dir, tag);

  std::error_code error;
  if (!old.empty()) fs::remove_all(old, error);
  if (error)
    log::warning("'" + old.string() + "', the checkpoint replaced, cannot be deleted: " + error.message() + ".");
}

}  // namespace capstan
