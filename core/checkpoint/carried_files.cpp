#include "core/checkpoint/carried_files.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/checkpoint/gguf_writer.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/log.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/pretrained/gguf_tokenizer.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr std::uint64_t kLargestFile = 64 << 20, kLargestSum = 128 << 20;  // bytes

bool is_carried(std::string_view name) {
  for (const std::string_view begin : {"tokenizer", "chat_template"}) {
    if (name.starts_with(begin)) return true;
  }
  static const std::set<std::string_view> kNames = {
      "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
      "generation_config.json",  "spiece.model"};
  return kNames.contains(name) || name.ends_with(".tiktoken");
}

at::Tensor bytes_of(const void* bytes, std::uint64_t count) {
  at::Tensor tensor = host_empty({static_cast<std::int64_t>(count)}, at::kByte);
  if (count > 0) std::memcpy(tensor.mutable_data_ptr(), bytes, count);
  return tensor;
}

std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

CarriedFiles files_of_folder(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_carried(it->path().filename().string()) && !it->is_directory(error)) found.push_back(it->path());
  }
  if (error) throw RuntimeFault("'" + folder.string() + "': cannot be read: " + error.message() + ".");
  std::sort(found.begin(), found.end());
  CarriedFiles files;
  std::uint64_t sum = 0;
  for (const fs::path& file : found) {
    const MappedFile mapped(file);
    if (mapped.size() > kLargestFile || sum + mapped.size() > kLargestSum) {
      log::warning("'" + file.string() + "': has " + std::to_string(mapped.size()) +
                   " bytes, more than checkpoints take with them (64 MiB a file, 128 MiB in all), so exports lack it.");
      continue;
    }
    sum += mapped.size();
    files.emplace(file.filename().string(), bytes_of(mapped.data(), mapped.size()));
  }
  return files;
}

/// Whether a key of the metadata tells the shape of the model or the form of the file, which an export writes anew.
bool is_of_the_export(const GgufHeader& header, std::string_view key) {
  static const std::set<std::string_view> kForm = {"general.architecture", "general.file_type", "general.alignment",
                                                   "general.quantization_version"};
  const GgufEntry* architecture = header.find("general.architecture");
  const std::string_view name = architecture ? architecture->text().value_or("") : "";
  return kForm.contains(key) || key.starts_with("split.") || key.starts_with(std::string(name) + ".");
}

CarriedFiles metadata_of_gguf(const fs::path& file) {
  const MappedFile mapped(file);
  const GgufHeader header = parse_gguf(mapped.data(), mapped.size(), "'" + file.string() + "'");
  std::vector<GgufEntry> kept;
  for (const GgufEntry& entry : header.metadata) {
    if (!is_of_the_export(header, entry.key)) kept.push_back(entry);
  }
  const std::string bytes = gguf_metadata_file(kept);
  return {{kGgufMetadata, bytes_of(bytes.data(), bytes.size())}};
}

}  // namespace

CarriedFiles read_carried_files(const fs::path& source) {
  std::error_code error;
  return fs::is_directory(source, error) ? files_of_folder(source) : metadata_of_gguf(source);
}

CarriedFiles carried_files_of(const CheckpointContents& contents) {
  CarriedFiles files;
  for (const CheckpointTensor& tensor : contents.tensors) {
    if (tensor.state != kFileState) continue;
    // The name comes from a file, and a path could lead out of the folder that it is written to.
    const bool is_name = is_carried(tensor.parameter) && tensor.parameter.find('/') == std::string::npos;
    if (!is_name && tensor.parameter != kGgufMetadata) {
      throw RuntimeFault("the checkpoint holds a file '" + tensor.parameter + "', which no checkpoint takes with it.");
    }
    if (tensor.values.scalar_type() != at::kByte || tensor.values.dim() != 1) {
      throw RuntimeFault("the checkpoint holds '" + tensor.parameter + "' as something else than bytes.");
    }
    files.emplace(tensor.parameter, tensor.values);
  }
  return files;
}

std::map<std::string, std::string> texts_of(const CarriedFiles& files) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, bytes] : files) texts.emplace(name, text_of(bytes));
  return texts;
}

void write_carried_files(const fs::path& folder, const CarriedFiles& files) {
  const auto write = [&](const std::string& name, std::string_view text) {
    write_aside(folder / name, [&](const fs::path& aside) { write_file(aside, text); });
  };
  for (const auto& [name, bytes] : files) {
    if (name != kGgufMetadata) write(name, text_of(bytes));
  }
  const auto gguf = files.find(kGgufMetadata);
  if (gguf == files.end() || files.contains(kTokenizer)) return;
  try {
    const std::string_view bytes = text_of(gguf->second);
    const std::string where = "the GGUF file that the model came from";
    const GgufHeader header = parse_gguf(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), where);
    const GgufTokenizer made = tokenizer_of_gguf(header, where);
    write(kTokenizer, made.tokenizer.dump());
    write("tokenizer_config.json", made.config.dump(2) + "\n");
  } catch (const RuntimeFault& fault) {
    log::warning(folder.string() + ": no tokenizer.json is written: " + fault.what());
  }
}

}  // namespace capstan
