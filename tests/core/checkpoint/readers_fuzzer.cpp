// The readers of what stands in a checkpoint's files, for libFuzzer and for readers_replay_test.
//
// The first byte picks the reader. A reader returns or throws RuntimeFault; anything else is a bug, and so is a text
// that is accepted and cannot be written and read again as the same. `scripts/fuzz 600 checkpoint` looks for inputs.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_reader.hpp"
#include "core/checkpoint/state_text.hpp"
#include "core/checkpoint/torch_dcp/dcp_metadata.hpp"
#include "core/checkpoint/torch_file/json_of.hpp"
#include "core/checkpoint/torch_file/torch_file.hpp"
#include "core/errors.hpp"
#include "core/keep/saved_run.hpp"
#include "core/pretrained/gguf_model.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

/// Puts the right checksum behind an index, for otherwise nothing but the check of it would be met.
std::string sealed(std::string_view body) {
  return std::string(body) + ",\n\"index_xxh3\": \"" + hex(xxh3(body.data(), body.size())) + "\"\n}\n";
}

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// A tensor of an accepted header is mapped without another look.
void read_header(std::string_view file) {
  const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
  for (const SafetensorsHeaderEntry& entry : parse_safetensors_header(bytes, file.size(), "file")) {
    demand(entry.begin <= entry.end && entry.end <= file.size(), "a tensor lies outside of its file");
    const std::int64_t elements = elements_of(entry.shape);
    demand(
        elements >= 0 && static_cast<std::uint64_t>(elements) * c10::elementSize(entry.type) == entry.end - entry.begin,
        "a tensor has other bytes than its shape takes");
  }
}

void read_index(std::string_view body) {
  const CheckpointIndex index = parse_index(sealed(body), "file");
  for (const IndexedFile& file : index.files) {
    demand(!file.name.empty() && file.name.find('/') == std::string::npos && file.name != "..",
           "a file lies outside of the checkpoint's folder");
  }
  const std::string text = index_text(index);
  demand(index_text(parse_index(text, "file")) == text, "an index changes when it is written and read");
}

void read_state(std::string_view given) {
  const std::string text = state_text(parse_state(given, "file"));
  demand(state_text(parse_state(text, "file")) == text, "a state changes when it is written and read");
}

/// What an engine takes over from a state, but for the plugins' texts.
void read_run(std::string_view text) {
  const Json state = parse_state(text, "file");
  const SavedRun run = read_saved_run(StateReader(state, "file"));
  demand(run.progress.global_steps >= 0 && run.progress.global_samples >= 0, "a counter is below 0");
}

/// A GGUF file: its tensors are mapped without another look.
void read_gguf(std::string_view file) {
  const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
  const GgufHeader header = parse_gguf(bytes, file.size(), "file");
  for (const GgufTensorInfo& tensor : header.tensors) {
    demand(tensor.begin <= tensor.end && tensor.end <= file.size(), "a tensor lies outside of its file");
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
    const GgufBlock block = block_of(tensor.type);
    demand(elements / block.elements * block.bytes == tensor.end - tensor.begin,
           "a tensor has other bytes than its shape takes");
  }
  const Json config = config_of_gguf(header, {&bytes, 1}, "file");
  demand(gguf_metadata(config).find("general.architecture") != nullptr, "a configuration has no metadata");
}

/// A file that is in no folder.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : number_(memfd_create("file", MFD_CLOEXEC)) {
    demand(number_ >= 0 && ::write(number_, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
           "a file in memory cannot be made");
  }
  ~MemoryFile() { close(number_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }

 private:
  int number_;
};

/// All tensors of a file of torch.save, and its values as a client state.
void read_torch_file(std::string_view content) {
  const MemoryFile memory(content);
  const TorchFile file(memory.path());
  std::string defect;
  json_of(TorchValue::root_of(file), defect);
  for (Pickle::Id id = 0; id < file.pickle().count(); ++id) {
    if (file.pickle().kind(id) != Pickle::Kind::kTensor) continue;
    try {
      const at::Tensor tensor = file.tensor(id, "tensor");
      file.verify(id, "tensor");
      demand(tensor.numel() == 0 || tensor.sum().numel() == 1, "a tensor cannot be read");
    } catch (const RuntimeFault&) {
    }
  }
}

/// The file .metadata of torch.distributed.checkpoint: its chunks are taken without another look.
void read_dcp_metadata(std::string_view content) {
  const MemoryFile memory(content);
  const std::unique_ptr<TorchFile> file = TorchFile::of_pickle(memory.path());
  for (const torch_dcp::Entry& entry : torch_dcp::read_metadata(*file)) {
    demand(!entry.path.empty(), "an entry has no name");
    for (const torch_dcp::Chunk& chunk : entry.chunks) {
      demand(chunk.offsets.size() == entry.shape.size() && chunk.sizes.size() == entry.shape.size(),
             "a chunk has other dimensions than its tensor");
      for (std::size_t i = 0; i < entry.shape.size(); ++i) {
        demand(chunk.offsets[i] + chunk.sizes[i] <= entry.shape[i], "a chunk lies outside of its tensor");
      }
      demand(chunk.item.file.find('/') == std::string::npos && chunk.item.file != "..",
             "an item lies outside of the checkpoint's folder");
    }
  }
}

/// The beginning of a stream of torch.save, up to the pickle of the object.
std::string stream_of(std::string_view rest) {
  return std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.") +
         std::string(rest);
}

void read_zip(std::string_view content) {
  const ZipDirectory directory(std::as_bytes(std::span(content.data(), content.size())), "file");
  for (const auto& [name, record] : directory.records()) {
    demand(record.begin <= content.size() && record.size <= content.size() - record.begin,
           "a record lies outside of its archive");
  }
}

void read(char reader, std::string_view text) {
  switch (reader) {
    case 'h': {
      const std::uint64_t length = text.size();
      std::string file(reinterpret_cast<const char*>(&length), 8);
      file += text;
      file.append(64, '\0');
      return read_header(file);
    }
    case 'f':
      return read_header(text);
    case 'g':
      return read_gguf(text);
    case 'i':
      return read_index(text);
    case 's':
      return read_state(text);
    case 'm':
      return read_dcp_metadata(text);
    case 'p':
      return read_torch_file(stream_of(text));
    case 't':
      return read_torch_file(text);
    case 'z':
      return read_zip(text);
    case 'r':
      return read_run(text);
    default:
      return;
  }
}

}  // namespace
}  // namespace capstan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    capstan::read(input.front(), input.substr(1));
  } catch (const capstan::RuntimeFault&) {
  }
  return 0;
}
