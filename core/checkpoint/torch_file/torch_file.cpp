#include "core/checkpoint/torch_file/torch_file.hpp"

#include <ATen/ops/from_blob.h>
#include <zlib.h>

#include <cstring>
#include <optional>
#include <utility>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/checkpoint/read_values.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
// torch/serialization.py: the first two pickles of a stream.
constexpr std::string_view kStreamMagic = "119547037146038801333356";
constexpr std::int64_t kStreamVersion = 1001;

std::optional<at::ScalarType> element_type(std::string_view storage) {
  static const std::map<std::string_view, at::ScalarType> kTypes = {
      {"FloatStorage", at::kFloat},       {"DoubleStorage", at::kDouble}, {"HalfStorage", at::kHalf},
      {"BFloat16Storage", at::kBFloat16}, {"LongStorage", at::kLong},     {"IntStorage", at::kInt},
      {"ShortStorage", at::kShort},       {"CharStorage", at::kChar},     {"ByteStorage", at::kByte},
      {"BoolStorage", at::kBool}};
  constexpr std::string_view kTorch = "torch.";
  if (!storage.starts_with(kTorch)) return std::nullopt;
  const auto found = kTypes.find(storage.substr(kTorch.size()));
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

/// The integers of a list or tuple; nothing where something else or a number below 0 is among them.
std::optional<std::vector<std::int64_t>> sizes_of(const Pickle& pickle, Pickle::Id id) {
  if (pickle.kind(id) != Pickle::Kind::kTuple) return std::nullopt;
  std::vector<std::int64_t> sizes;
  for (const Pickle::Id item : pickle.items(id)) {
    if (pickle.kind(item) != Pickle::Kind::kInteger || pickle.integer(item) < 0) return std::nullopt;
    sizes.push_back(pickle.integer(item));
  }
  return sizes;
}

/// The last element that such a tensor has, of its storage; -1: it does not fit 64 bits.
std::int64_t last_element(std::int64_t offset, const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  std::int64_t last = offset;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return -1;
    }
  }
  return last;
}

std::shared_ptr<const MappedFile> map(const std::filesystem::path& path) {
  try {
    return std::make_shared<const MappedFile>(path);
  } catch (const RuntimeFault& fault) {
    throw RuntimeFault(std::string("checkpoint file ") + fault.what());
  }
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& path) : TorchFile(path, /*is_bare=*/false) {}

TorchFile::TorchFile(const std::filesystem::path& path, bool is_bare)
    : where_("checkpoint file '" + path.string() + "'"),
      mapped_(map(path)),
      content_(mapped_->data(), mapped_->size()) {
  if (content_.empty()) fail("it is empty: it was cut off.");
  is_bare ? open_pickle() : open();
}

std::unique_ptr<TorchFile> TorchFile::of_pickle(const std::filesystem::path& path) {
  return std::unique_ptr<TorchFile>(new TorchFile(path, /*is_bare=*/true));
}

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file, std::uint64_t begin, std::uint64_t size, std::string where)
    : where_(std::move(where)), mapped_(std::move(file)) {
  if (begin > mapped_->size() || size > mapped_->size() - begin) {
    fail("bytes " + std::to_string(begin) + " to " + std::to_string(begin + size) + " are beyond its end at byte " +
         std::to_string(mapped_->size()) + ": it was cut off.");
  }
  content_ = Pickle::Bytes(mapped_->data(), mapped_->size()).subspan(begin, size);
  open();
}

void TorchFile::open_pickle() { pickle_ = std::make_unique<const Pickle>(content_, where_); }

void TorchFile::open() {
  if (content_.empty()) fail("it is empty: it was cut off.");
  const bool is_stream = content_.size() >= 2 && content_[0] == std::byte{0x80};
  is_stream ? open_stream() : open_archive();
}

void TorchFile::fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

Pickle::Bytes TorchFile::bytes(std::uint64_t begin, std::uint64_t size) const { return content_.subspan(begin, size); }

void TorchFile::open_archive() {
  directory_ = std::make_unique<const ZipDirectory>(bytes(0, content_.size()), where_);
  const ZipRecord* pickle = nullptr;
  for (const auto& [name, record] : directory_->records()) {
    if (name.find('/') == std::string::npos || name.substr(name.find('/') + 1) != kPickleName) continue;
    if (pickle != nullptr) fail("it has two records 'data.pkl', and torch.save writes one.");
    prefix_ = name.substr(0, name.size() - kPickleName.size());
    pickle = &record;
  }
  if (pickle == nullptr) fail("it is not a file of torch.save: it has no record 'data.pkl'.");
  if (const ZipRecord* order = directory_->find(prefix_ + "byteorder")) {
    const auto text = bytes(order->begin, order->size);
    if (std::string_view(reinterpret_cast<const char*>(text.data()), text.size()) != "little") {
      fail("it was written on a big-endian machine. Save it again on a little-endian one.");
    }
  }
  const auto text = bytes(pickle->begin, pickle->size);
  if (crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()) != pickle->crc32) {
    fail("it is damaged: its record 'data.pkl' does not fit its checksum.");
  }
  pickle_ = std::make_unique<const Pickle>(text, where_);
}

void TorchFile::open_stream() {
  std::uint64_t at = 0;
  const auto next = [&] {
    Pickle pickle(bytes(at, content_.size() - at), where_);
    at += pickle.size();
    return pickle;
  };
  const Pickle magic = next();
  if (magic.kind(magic.root()) != Pickle::Kind::kLongInteger || magic.text(magic.root()) != kStreamMagic) {
    fail("it is not a file of torch.save: it begins as a pickle of something else.");
  }
  const Pickle version = next();
  if (version.kind(version.root()) != Pickle::Kind::kInteger || version.integer(version.root()) != kStreamVersion) {
    fail("it is of another version of torch's format than 1001.");
  }
  const Pickle machine = next();
  const auto& facts = machine.items(machine.root());
  for (std::size_t i = 0; i + 1 < facts.size(); i += 2) {
    if (machine.text(facts[i]) == "little_endian" && !machine.boolean(facts[i + 1])) {
      fail("it was written on a big-endian machine. Save it again on a little-endian one.");
    }
  }
  pickle_ = std::make_unique<const Pickle>(next());
  const Pickle keys = next();
  std::map<std::string_view, std::uint64_t> element_bytes;
  for (Pickle::Id id = 0; id < pickle_->count(); ++id) {
    if (pickle_->kind(id) != Pickle::Kind::kStorage) continue;
    if (const auto type = element_type(pickle_->text(id))) {
      element_bytes[pickle_->text(pickle_->items(id)[0])] = c10::elementSize(*type);
    }
  }
  for (const Pickle::Id id : keys.items(keys.root())) {
    const auto known = element_bytes.find(keys.text(id));
    if (known == element_bytes.end()) fail("it has a storage of which its pickle says nothing.");
    std::int64_t elements = 0;
    std::uint64_t size = 0;
    if (content_.size() - at < sizeof(elements)) fail("it ends before its storages do: it was cut off.");
    std::memcpy(&elements, content_.data() + at, sizeof(elements));
    at += sizeof(elements);
    if (elements < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(elements), known->second, &size) ||
        size > content_.size() - at) {
      fail("it ends before its storages do: it was cut off.");
    }
    begins_.emplace(keys.text(id), at);
    at += size;
  }
  if (at != content_.size()) fail("something was added to it: its storages end at byte " + std::to_string(at) + ".");
}

TorchFile::Storage TorchFile::storage(Pickle::Id id, const std::string& what) const {
  const auto refuse = [&](const std::string& defect) { fail(what + ": " + defect); };
  if (pickle_->kind(id) != Pickle::Kind::kStorage) refuse("it is a tensor without a storage.");
  const auto type = element_type(pickle_->text(id));
  if (!type) {
    refuse("its values are of " + std::string(pickle_->text(id)) +
           ", and floating-point or whole numbers are expected.");
  }
  const std::string key(pickle_->text(pickle_->items(id)[0]));
  Storage found{*type, pickle_->integer(pickle_->items(id)[1])};
  std::uint64_t size = 0;
  if (found.elements < 0 ||
      __builtin_mul_overflow(static_cast<std::uint64_t>(found.elements), c10::elementSize(*type), &size)) {
    refuse("the pickle gives its storage " + std::to_string(found.elements) + " elements.");
  }
  std::uint64_t available = 0;
  if (directory_) {
    found.record = directory_->find(prefix_ + "data/" + key);
    if (found.record == nullptr) refuse("its storage '" + key + "' is not in the file.");
    found.begin = found.record->begin;
    available = found.record->size;
  } else {
    const auto begin = begins_.find(key);
    if (begin == begins_.end()) refuse("its storage '" + key + "' is not in the file.");
    found.begin = begin->second;
    available = std::min(size, content_.size() - found.begin);
  }
  if (available != size) {
    refuse("the pickle gives its storage " + std::to_string(found.elements) + " elements, and the file " +
           std::to_string(available) + " bytes.");
  }
  return found;
}

at::Tensor TorchFile::tensor(Pickle::Id id, const std::string& what, bool with_values) const {
  if (pickle_->kind(id) != Pickle::Kind::kTensor) fail(what + ": it is not a tensor.");
  const std::vector<Pickle::Id>& parts = pickle_->items(id);
  const Storage from = storage(parts[0], what);
  const auto shape = sizes_of(*pickle_, parts[2]), strides = sizes_of(*pickle_, parts[3]);
  if (pickle_->kind(parts[1]) != Pickle::Kind::kInteger || pickle_->integer(parts[1]) < 0 || !shape || !strides ||
      shape->size() != strides->size()) {
    fail(what + ": its offset, shape or strides are not those of a tensor.");
  }
  const std::int64_t elements = elements_of(*shape), offset = pickle_->integer(parts[1]);
  if (elements < 0) fail(what + ": its shape is too large.");
  if (elements == 0) return host_empty(*shape, from.type);
  const std::int64_t last = last_element(offset, *shape, *strides);
  // Strides of 0 would make any number of elements of one.
  if (last < 0 || last >= from.elements || elements > from.elements) {
    fail(what + ": " + std::to_string(elements) + " elements from " + std::to_string(offset) +
         " on are beyond its storage, which has " + std::to_string(from.elements) + ".");
  }
  if (!with_values) return values_elsewhere(*shape, from.type);
  mapped_->check_size();
  const std::byte* begin =
      content_.data() + from.begin + static_cast<std::uint64_t>(offset) * c10::elementSize(from.type);
  const at::TensorOptions options = at::TensorOptions().dtype(from.type);
  if (reinterpret_cast<std::uintptr_t>(begin) % c10::elementSize(from.type) != 0) {
    // A stream does not align its storages.
    at::Tensor copy = host_empty({last - offset + 1}, from.type);
    std::memcpy(copy.mutable_data_ptr(), begin, copy.nbytes());
    return copy.as_strided(*shape, *strides);
  }
  // LibTorch makes no tensor of constant memory: the cast is safe because the storage gives the memory to readers only.
  at::Tensor mapped = at::from_blob(
      const_cast<std::byte*>(begin), *shape, *strides, [file = mapped_](void*) {}, options);
  mapped.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  return mapped;
}

void TorchFile::verify_all() const {
  if (!directory_) return;
  mapped_->check_size();
  for (const auto& [name, record] : directory_->records()) {
    if (crc32_z(0, reinterpret_cast<const Bytef*>(content_.data() + record.begin), record.size) != record.crc32) {
      fail("it is damaged: its record '" + name + "' does not fit its checksum.");
    }
  }
}

void TorchFile::verify(Pickle::Id id, const std::string& what) const {
  const Storage of = storage(pickle_->items(id)[0], what);
  if (of.record == nullptr || !verified_.insert(of.begin).second) return;
  mapped_->check_size();
  if (crc32_z(0, reinterpret_cast<const Bytef*>(content_.data() + of.begin), of.record->size) == of.record->crc32)
    return;
  fail(what + ": it is damaged: its storage does not fit its checksum.");
}

}  // namespace capstan
