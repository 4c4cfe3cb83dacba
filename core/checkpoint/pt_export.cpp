#include "core/checkpoint/pt_export.hpp"

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

/// What the archive's writer calls, and where an error of the file is kept while it passes through the C code between.
class ArchiveOutput {
 public:
  explicit ArchiveOutput(const std::filesystem::path& path) : file_(path) {}

  std::size_t write(const void* bytes, std::size_t count) noexcept {
    try {
      file_.write(bytes, count);
      return count;
    } catch (...) {
      if (!error_) error_ = std::current_exception();
      return 0;
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  void finish() { file_.finish(); }

 private:
  OutputFile file_;
  std::exception_ptr error_;
};

void write_archive(ArchiveOutput& output, const c10::IValue& value) {
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
  for (std::size_t i = 0; i < pickler.tensorData().size(); ++i) {
    const at::Tensor& tensor = pickler.tensorData()[i];
    archive.writeRecord("data/" + std::to_string(i), tensor.const_data_ptr(), tensor.nbytes());
  }
  archive.writeEndOfFile();
}

}  // namespace

void export_pt(const std::filesystem::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  OwnStorage storage;
  c10::Dict<std::string, at::Tensor> dictionary;
  for (const auto& [name, tensor] : tensors) dictionary.insert(name, storage.of(tensor));

  write_aside(path, [&](const std::filesystem::path& aside) {
    ArchiveOutput output(aside);
    try {
      write_archive(output, dictionary);
    } catch (const std::exception&) {
      output.rethrow();  // the disk's own reason rather than the archive's
      throw;
    }
    output.rethrow();
    output.finish();
  });
}

}  // namespace capstan
