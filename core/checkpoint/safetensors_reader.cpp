#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <string_view>

#include "core/checkpoint/dtypes.hpp"
#include "core/checkpoint/nesting.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and mapped as they are");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit

/// Reads one header and complains with the file's name in front.
class HeaderParser {
 public:
  HeaderParser(const std::byte* bytes, std::uint64_t size, const std::string& where)
      : bytes_(bytes), size_(size), where_(where) {}

  std::vector<SafetensorsHeaderEntry> parse() {
    const Json header = header_json();
    std::vector<SafetensorsHeaderEntry> entries;
    std::set<std::string_view> names;
    for (const auto& [name, facts] : header.as_object()) {
      if (!names.insert(name).second) fail("two tensors are named '" + name + "'.");
      if (name != "__metadata__") entries.push_back(entry(name, facts));
    }
    check_cover(entries);
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

  Json header_json() {
    std::uint64_t length = 0;
    if (size_ < kLengthBytes) fail("it has " + std::to_string(size_) + " bytes, too few for a safetensors file.");
    std::memcpy(&length, bytes_, kLengthBytes);
    if (length > kLongestHeader)
      fail("this is not a safetensors file: the header's length would be " + std::to_string(length) + " bytes.");
    if (length > size_ - kLengthBytes)
      fail("it is cut off in its header: " + std::to_string(size_) + " bytes, the header alone takes " +
           std::to_string(kLengthBytes + length) + ".");
    data_begin_ = kLengthBytes + length;
    const std::string_view text(reinterpret_cast<const char*>(bytes_) + kLengthBytes, length);
    if (!text.starts_with('{') || nested_deeper_than(text, 8))
      fail(
          "this is not a safetensors file: the header is not a JSON "
          "object of tensors.");
    try {
      return Json::parse(text);
    } catch (const ConfigError& error) {
      fail(std::string("the header is damaged: ") + error.what());
    }
  }

  SafetensorsHeaderEntry entry(const std::string& name, const Json& facts) const {
    const auto bad = [&](const std::string& what) { fail("tensor '" + name + "': " + what); };
    const Json* dtype = facts.find("dtype");
    const Json* shape = facts.find("shape");
    const Json* offsets = facts.find("data_offsets");
    if (!dtype || !dtype->is_string()) bad("no dtype.");
    if (!shape || !is_sizes(*shape)) bad("no shape, or one that is not a list of sizes.");
    if (!offsets || !is_sizes(*offsets) || offsets->size() != 2) bad("no data_offsets, or not two of them.");
    const auto type = scalar_type_of(dtype->as_string());
    if (!type) bad("dtype '" + dtype->as_string() + "' is not known here.");

    SafetensorsHeaderEntry entry{.name = name, .type = *type};
    const auto element = static_cast<std::int64_t>(c10::elementSize(*type));
    std::int64_t elements = 1, span = element;  // span: as if a size of 0 were 1, for the strides must fit as well
    for (const auto& size : shape->as_array()) {
      entry.shape.push_back(size.as_integer());
      if (__builtin_mul_overflow(span, std::max<std::int64_t>(size.as_integer(), 1), &span))
        bad("its shape is too large.");
      elements *= size.as_integer();
    }
    const auto bytes = static_cast<std::uint64_t>(elements * element);
    const auto begin = static_cast<std::uint64_t>(offsets->as_array()[0].as_integer());
    const auto end = static_cast<std::uint64_t>(offsets->as_array()[1].as_integer());
    if (begin > end || end > size_ - data_begin_) {
      bad("it stands at bytes " + std::to_string(begin) + " to " + std::to_string(end) +
          " of the data, but the file "
          "has " +
          std::to_string(size_ - data_begin_) + ": cut off, or the header is damaged.");
    }
    if (end - begin != bytes) {
      bad("its shape and dtype take " + std::to_string(bytes) + " bytes, the offsets leave " +
          std::to_string(end - begin) + ".");
    }
    entry.begin = data_begin_ + begin;
    entry.end = data_begin_ + end;
    return entry;
  }

  static bool is_sizes(const Json& value) {
    return value.is_array() && std::all_of(value.as_array().begin(), value.as_array().end(), [](const Json& size) {
             return size.is_integer() && size.as_integer() >= 0;
           });
  }

  void check_cover(const std::vector<SafetensorsHeaderEntry>& entries) const {
    std::vector<const SafetensorsHeaderEntry*> sorted;
    for (const auto& entry : entries) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
    std::uint64_t position = data_begin_;
    for (const auto* entry : sorted) {
      if (entry->begin != position) {
        fail("tensor '" + entry->name + "' " +
             (entry->begin < position ? "overlaps the one before it." : "leaves a hole before it."));
      }
      position = entry->end;
    }
    if (position != size_) {
      fail("the tensors end at byte " + std::to_string(position) + ", the file at " + std::to_string(size_) + ".");
    }
  }

  const std::byte* bytes_;
  std::uint64_t size_;
  const std::string& where_;
  std::uint64_t data_begin_ = 0;
};

}  // namespace

std::vector<SafetensorsHeaderEntry> parse_safetensors_header(const std::byte* bytes, std::uint64_t size,
                                                             const std::string& where) {
  return HeaderParser(bytes, size, where).parse();
}

at::Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, const SafetensorsHeaderEntry& entry) {
  const std::byte* begin = file->data() + entry.begin;
  if (entry.begin == entry.end) return host_empty(entry.shape, entry.type);
  if (reinterpret_cast<std::uintptr_t>(begin) % c10::elementSize(entry.type) != 0) {
    at::Tensor copy = host_empty(entry.shape, entry.type);
    std::memcpy(copy.mutable_data_ptr(), begin, entry.end - entry.begin);
    return copy;
  }
  // LibTorch makes no tensor of constant memory: the cast is safe because the storage gives the memory to readers only.
  at::Tensor tensor = at::from_blob(
      const_cast<std::byte*>(begin), entry.shape, [file](void*) {}, at::TensorOptions().dtype(entry.type));
  tensor.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  return tensor;
}

std::vector<SafetensorsEntry> read_safetensors(const std::filesystem::path& file) {
  const auto mapped = std::make_shared<const MappedFile>(file);
  std::vector<SafetensorsEntry> tensors;
  for (const auto& entry : parse_safetensors_header(mapped->data(), mapped->size(), "'" + file.string() + "'")) {
    tensors.push_back({entry.name, mapped_tensor(mapped, entry)});
  }
  return tensors;
}

}  // namespace capstan
