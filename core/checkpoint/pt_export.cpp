#include "core/checkpoint/pt_export.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <exception>
#include <map>
#include <tuple>

#include "core/checkpoint/output_file.hpp"

namespace capstan {
namespace {

/// Copies of the tensors that own just their elements, the same one for the same tensor.
class OwnStorage {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    const Key key(tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type());
    // Without elements there is no address to tell tensors apart by.
    if (tensor.numel() == 0) return tensor.detach().cpu().clone();
    auto& own = owned_[key];
    if (!own.defined()) own = made(tensor.detach());
    return own;
  }

 private:
  using Key = std::tuple<const void*, std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType>;

  static at::Tensor made(const at::Tensor& tensor) {
    const at::Tensor here = tensor.cpu().contiguous();
    return here.storage_offset() == 0 && here.storage().nbytes() == here.nbytes() ? here : here.clone();
  }

  std::map<Key, at::Tensor> owned_;
};

/// Keeps an error of the file while the archive's writer ends. The writer is told that all is well: where it learns of
/// an error, its destructor throws, which ends the process.
class ArchiveOutput {
 public:
  explicit ArchiveOutput(const std::filesystem::path& path) : file_(path) {}

  std::size_t write(const void* bytes, std::size_t count) noexcept {
    try {
      if (!error_) file_.write(bytes, count);
    } catch (...) {
      error_ = std::current_exception();
    }
    return count;
  }

  bool failed() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  void finish() { file_.finish(); }

 private:
  OutputFile file_;
  std::exception_ptr error_;
};

/// Entries that are not in memory, by the storage of the tensor that stands for them in the pickle.
using Elsewhere = std::map<const c10::StorageImpl*, const SafetensorsEntry*>;

/// A tensor of the entry's shape and dtype whose memory nobody may look into.
at::Tensor stand_in(const SafetensorsEntry& entry) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), entry.values.nbytes(), at::DataPtr(nullptr, at::kCPU));
  return at::empty({0}, entry.values.options().device(at::kCPU)).set_(storage, 0, entry.values.sizes());
}

void write_archive(ArchiveOutput& output, const c10::IValue& value, const Elsewhere& elsewhere) {
  caffe2::serialize::PyTorchStreamWriter archive(
      [&](const void* bytes, std::size_t count) { return output.write(bytes, count); });
  std::string pickle;
  std::size_t storages = 0;
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t count) { pickle.append(bytes, count); }, nullptr,
                              nullptr, nullptr, [&](const at::Tensor&) { return std::to_string(storages++); },
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  archive.writeRecord("data.pkl", pickle.data(), pickle.size());
  archive.writeRecord("byteorder", "little", 6);
  for (std::size_t i = 0; i < pickler.tensorData().size() && !output.failed(); ++i) {
    at::Tensor tensor = pickler.tensorData()[i];
    const auto found = elsewhere.find(tensor.storage().unsafeGetStorageImpl());
    if (found != elsewhere.end()) tensor = found->second->read(0, tensor.numel());
    archive.writeRecord("data/" + std::to_string(i), tensor.const_data_ptr(), tensor.nbytes());
  }
  archive.writeEndOfFile();
}

}  // namespace

void export_pt(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& tensors, const TiedNames& tied) {
  OwnStorage storage;
  Elsewhere elsewhere;
  c10::Dict<std::string, at::Tensor> dictionary;
  for (const SafetensorsEntry& entry : tensors) {
    const bool reads = entry.read && entry.values.numel() > 0;
    const at::Tensor tensor = reads ? stand_in(entry) : storage.of(entry.values);
    if (reads) elsewhere.emplace(tensor.storage().unsafeGetStorageImpl(), &entry);
    dictionary.insert(entry.name, tensor);
  }
  for (const auto& [name, first] : tied) dictionary.insert(name, dictionary.at(first));

  write_aside(path, [&](const std::filesystem::path& aside) {
    ArchiveOutput output(aside);
    write_archive(output, dictionary, elsewhere);
    output.rethrow();
    output.finish();
  });
}

}  // namespace capstan
