#include "core/checkpoint/checkpoint_verify.hpp"

#include <set>
#include <system_error>
#include <utility>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/torch_dcp/read_torch_dcp.hpp"
#include "core/checkpoint/torch_file/torch_file.hpp"
#include "core/checkpoint/trainer_folder.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

/// The names that torch.save's files have: training_args.bin and pytorch_model.bin as well.
bool is_of_torch(const fs::path& file) {
  const fs::path kind = file.extension();
  return kind == ".pt" || kind == ".pth" || kind == ".bin";
}

/// Checks the file by itself, as far as its kind has checksums or a structure.
void verify_file(const fs::path& file) {
  if (is_of_torch(file)) {
    TorchFile(file).verify_all();
  } else if (file.extension() == ".safetensors") {
    read_safetensors(file);
  }
}

/// Counts the files of a folder; of another program's folder each is checked by itself.
void look_at_files(const fs::path& folder, bool check, VerifiedCheckpoint& verified) {
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    std::error_code unread;
    if (!entries->is_regular_file(unread)) continue;
    ++verified.files;
    verified.bytes += entries->file_size(unread);
    if (check) verify_file(entries->path());
  }
  if (error) throw RuntimeFault("checkpoint '" + folder.string() + "': " + error.message() + ".");
}

/// Reads the checkpoint as a run that takes all of it.
void read_all(const fs::path& dir, const std::string& tag, VerifiedCheckpoint& verified) {
  const CheckpointContents contents = read_checkpoint(dir, tag);
  std::set<std::pair<std::string, std::string>> tensors;
  for (const CheckpointTensor& part : contents.tensors) tensors.emplace(part.parameter, part.state);
  verified.tensors += static_cast<std::int64_t>(tensors.size());
  const Json* writer = contents.state.find("written_by");
  verified.writer = writer != nullptr && writer->is_string() ? writer->as_string() : "Capstan";
}

}  // namespace

VerifiedCheckpoint verify_checkpoint(const fs::path& dir, const std::string& tag) {
  check_tag(tag);
  VerifiedCheckpoint verified;
  std::error_code error;
  const fs::path folder = dir / tag;
  if (read_trainer_state(folder)) {
    verified.writer = "transformers";
    if (fs::exists(folder / kLatestName, error)) {
      read_all(folder, latest_tag(folder), verified);
      verified.writer = "transformers, " + verified.writer;
    }
  } else {
    read_all(dir, tag, verified);
    if (verified.writer != "Capstan" && is_torch_dcp_folder(folder)) verify_torch_dcp(folder);
  }
  look_at_files(folder, verified.writer != "Capstan", verified);
  return verified;
}

}  // namespace capstan
