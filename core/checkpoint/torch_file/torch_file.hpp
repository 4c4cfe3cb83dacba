#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "core/checkpoint/torch_file/pickle.hpp"
#include "core/checkpoint/torch_file/zip_directory.hpp"
#include "core/data/mapped_file.hpp"

namespace capstan {

/// A file of torch.save, mapped: the zip archive of torch 1.6 and later, or the stream of pickles before it (with
/// _use_new_zipfile_serialization=False). Little-endian files alone. [one call at a time]
class TorchFile {
 public:
  /// Reads the directory and the pickle. Throws RuntimeFault naming the file and what is wrong.
  explicit TorchFile(const std::filesystem::path& path);
  /// One of several archives in a file: its bytes [begin, begin + size), which must lie within. `where`: for messages.
  TorchFile(std::shared_ptr<const MappedFile> file, std::uint64_t begin, std::uint64_t size, std::string where);

  /// A file that is one pickle, without storages. Throws as the constructor.
  static std::unique_ptr<TorchFile> of_pickle(const std::filesystem::path& path);

  /// "checkpoint file 'ckpt/global_step3/mp_rank_00_model_states.pt'", for messages.
  const std::string& where() const { return where_; }
  const Pickle& pickle() const { return *pickle_; }

  /// A tensor on the CPU with its shape and strides, of memory that is read-only and belongs to the file. `what` names
  /// it in messages. Throws RuntimeFault for another value than a tensor, an element type that no checkpoint has, and
  /// elements outside of the storage or of the file. Without values: a contiguous tensor on the meta device.
  at::Tensor tensor(Pickle::Id id, const std::string& what, bool with_values = true) const;
  /// Throws RuntimeFault unless the bytes of the tensor's storage fit their CRC-32. The format before torch 1.6 has
  /// none.
  void verify(Pickle::Id id, const std::string& what) const;
  /// Throws RuntimeFault unless the bytes of all records fit their CRC-32.
  void verify_all() const;

 private:
  struct Storage {
    at::ScalarType type = at::kFloat;
    std::int64_t elements = 0;
    std::uint64_t begin = 0;            // in content_
    const ZipRecord* record = nullptr;  // null: the file has no checksums
  };
  void open_archive();
  void open_stream();
  Storage storage(Pickle::Id id, const std::string& what) const;
  Pickle::Bytes bytes(std::uint64_t begin, std::uint64_t size) const;
  [[noreturn]] void fail(const std::string& defect) const;

  void open();
  void open_pickle();
  TorchFile(const std::filesystem::path& path, bool is_bare);

  std::string where_;
  std::shared_ptr<const MappedFile> mapped_;
  Pickle::Bytes content_;                          // of the mapped file
  std::unique_ptr<const ZipDirectory> directory_;  // null: a stream
  std::string prefix_;                             // of the records' names
  std::unique_ptr<const Pickle> pickle_;
  std::map<std::string, std::uint64_t, std::less<>> begins_;  // of the storages of a stream, by key
  mutable std::set<std::uint64_t> verified_;                  // records, by where they begin
};

}  // namespace capstan
