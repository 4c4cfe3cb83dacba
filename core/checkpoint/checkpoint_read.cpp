#include <ATen/ops/empty.h>

#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/deepspeed/deepspeed_folder.hpp"
#include "core/checkpoint/deepspeed/read_deepspeed.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/checkpoint/torch_dcp/read_torch_dcp.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

/// One rank's file, mapped and checked up to its tensors' bytes.
struct OpenFile {
  std::shared_ptr<const MappedFile> mapped;
  std::map<std::string, SafetensorsHeaderEntry> entries;
};

/// Reads one checkpoint's folder and complains with its path in front.
class Reader {
 public:
  using Takes = std::function<bool(const CheckpointTensor&)>;
  Reader(fs::path folder, const Takes& takes) : folder_(std::move(folder)), takes_(takes) {}

  CheckpointContents read() {
    const auto index_file = map(kIndexName);
    const CheckpointIndex index = parse_index(text_of(*index_file), where(kIndexName));
    CheckpointContents contents;
    contents.state = read_state(index);
    for (const auto& file : index.files) files_.emplace(file.name, open(index, file));
    for (const auto& tensor : index.tensors) contents.tensors.push_back(read_tensor(tensor));
    return contents;
  }

  Json read_state() const {
    const auto index_file = map(kIndexName);
    return read_state(parse_index(text_of(*index_file), where(kIndexName)));
  }

 private:
  std::string where(const std::string& name) const { return "checkpoint file '" + (folder_ / name).string() + "'"; }

  [[noreturn]] void fail(const std::string& name, const std::string& defect) const {
    throw RuntimeFault(where(name) + ": " + defect);
  }

  static std::string_view text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.data()), file.size()};
  }

  std::shared_ptr<const MappedFile> map(const std::string& name) const {
    std::error_code error;
    if (!fs::exists(folder_ / name, error)) fail(name, "it is missing.");
    try {
      return std::make_shared<const MappedFile>(folder_ / name);
    } catch (const RuntimeFault& fault) {
      throw RuntimeFault(std::string("checkpoint file ") + fault.what());
    }
  }

  void check_size(const std::string& name, const MappedFile& mapped, std::uint64_t bytes) const {
    if (mapped.size() == bytes) return;
    fail(name, "it has " + std::to_string(mapped.size()) + " bytes, " + std::to_string(bytes) +
                   " were written: " + (mapped.size() < bytes ? "it was cut off." : "something was added."));
  }

  Json read_state(const CheckpointIndex& index) const {
    const auto mapped = map(kStateName);
    check_size(kStateName, *mapped, index.state_bytes);
    if (xxh3(mapped->data(), mapped->size()) != index.state_xxh3) {
      fail(kStateName, "it is damaged: it does not match its checksum.");
    }
    return parse_state(text_of(*mapped), where(kStateName));
  }

  /// Whether the file is, by its size and its header, the one that was written under the name.
  static bool is_written(const MappedFile& mapped, const IndexedFile& file) {
    return file.bytes == mapped.size() && file.header_bytes <= file.bytes &&
           xxh3(mapped.data(), file.header_bytes) == file.header_xxh3;
  }

  [[noreturn]] void fail_as_another(const CheckpointIndex& index, const IndexedFile& file,
                                    const MappedFile& mapped) const {
    for (const IndexedFile& other : index.files) {
      if (is_written(mapped, other)) fail(file.name, "it is '" + other.name + "' under another name.");
    }
    check_size(file.name, mapped, file.bytes);
    fail(file.name, "its header is damaged: it does not match its checksum.");
  }

  OpenFile open(const CheckpointIndex& index, const IndexedFile& file) const {
    OpenFile out{map(file.name), {}};
    if (!is_written(*out.mapped, file)) fail_as_another(index, file, *out.mapped);
    for (auto& entry : parse_safetensors_header(out.mapped->data(), out.mapped->size(), where(file.name))) {
      out.entries.emplace(entry.name, entry);
    }
    return out;
  }

  CheckpointTensor read_tensor(const IndexedTensor& tensor) const {
    const std::string name = tensor.state + " of '" + tensor.parameter + "'";
    const auto file = files_.find(tensor.file);
    if (file == files_.end()) fail(kIndexName, name + " is in '" + tensor.file + "', which is not among the files.");
    const auto found = file->second.entries.find(tensor.name);
    if (found == file->second.entries.end()) fail(tensor.file, name + " is not in it.");
    const SafetensorsHeaderEntry& entry = found->second;
    if (entry.type != tensor.type || entry.begin != tensor.begin || entry.end != tensor.end ||
        elements_of(entry.shape) != tensor.numel) {
      fail(tensor.file, name + " is another one than the index says: they do not belong together.");
    }
    const CheckpointTensor found_tensor{tensor.parameter, tensor.state, tensor.shape, tensor.offset,
                                        mapped_tensor(file->second.mapped, entry)};
    if (takes_(found_tensor) &&
        xxh3(file->second.mapped->data() + entry.begin, entry.end - entry.begin) != tensor.xxh3) {
      fail(tensor.file, name + " is damaged: it does not match its checksum.");
    }
    return found_tensor;
  }

  fs::path folder_;
  const Takes& takes_;
  std::map<std::string, OpenFile> files_;
};

/// Who wrote the folder of a tag.
enum class Writer { kCapstan, kDeepSpeed, kTorch };

Writer writer_of(const fs::path& dir, const std::string& tag) {
  check_tag(tag);
  std::error_code error;
  if (fs::exists(dir / tag / kIndexName, error)) return Writer::kCapstan;
  if (is_deepspeed_folder(dir / tag)) return Writer::kDeepSpeed;
  return is_torch_dcp_folder(dir / tag) ? Writer::kTorch : Writer::kCapstan;
}

CheckpointContents read_as(Writer writer, const fs::path& dir, const std::string& tag, const Reader::Takes& takes,
                           const TrainedNames& trained) {
  if (writer == Writer::kDeepSpeed) return read_deepspeed(dir / tag, takes, trained);
  if (writer == Writer::kTorch) return read_torch_dcp(dir / tag, takes);
  return Reader(find_checkpoint(dir, tag), takes).read();
}

}  // namespace

Json read_checkpoint_state(const fs::path& dir, const std::string& tag) {
  const Reader::Takes nothing = [](const CheckpointTensor&) { return false; };
  const Writer writer = writer_of(dir, tag);
  if (writer == Writer::kDeepSpeed) return read_deepspeed(dir / tag, nothing, {}, /*with_tensors=*/false).state;
  if (writer == Writer::kTorch) return read_torch_dcp(dir / tag, nothing).state;
  return Reader(find_checkpoint(dir, tag), nothing).read_state();
}

CheckpointContents read_checkpoint(const fs::path& dir, const std::string& tag) {
  return read_checkpoint(dir, tag, [](const CheckpointTensor&) { return true; });
}

CheckpointContents read_checkpoint(const fs::path& dir, const std::string& tag,
                                   const std::function<bool(const CheckpointTensor&)>& takes,
                                   const TrainedNames& trained) {
  const Writer writer = writer_of(dir, tag);
  if (writer == Writer::kCapstan) find_checkpoint(dir, tag);  // its refusal names the others
  try {
    return read_as(writer, dir, tag, takes, trained);
  } catch (const RuntimeFault& fault) {
    std::string others;
    for (const auto& other : readable_tags(dir)) {
      if (other != tag) others += (others.empty() ? "" : ", ") + other;
    }
    if (others.empty()) throw;
    throw RuntimeFault(std::string(fault.what()) + " Other checkpoints there: " + others + ".");
  }
}

}  // namespace capstan
