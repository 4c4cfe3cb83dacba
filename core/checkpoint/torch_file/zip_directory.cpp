#include "core/checkpoint/torch_file/zip_directory.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50, kEntry = 0x02014b50,
                        kLocal = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kLocalBytes = 30,
                        kLongestComment = 0xffff;
constexpr std::uint32_t kIn64 = 0xffffffff;  // a size or an offset that stands in a field of 64 bits

struct Listed {
  std::string name;
  ZipRecord record;
  std::uint64_t header = 0;  // where the local header stands
};

class ArchiveParser {
 public:
  ArchiveParser(std::span<const std::byte> archive, const std::string& where) : archive_(archive), where_(where) {}

  std::vector<Listed> parse() {
    const auto [entries, begin] = directory();
    std::vector<Listed> all;
    std::uint64_t at = begin;
    for (std::uint64_t i = 0; i < entries; ++i) all.push_back(entry(at));
    for (Listed& one : all) locate(one);
    check_apart(all);
    return all;
  }

 private:
  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

  bool holds(std::uint64_t at, std::uint64_t bytes) const {
    return at <= archive_.size() && bytes <= archive_.size() - at;
  }

  void need(std::uint64_t at, std::uint64_t bytes) const {
    if (!holds(at, bytes)) fail("its zip directory is damaged: it leads beyond the end of the file.");
  }

  template <class T>
  T number(std::uint64_t at) const {
    need(at, sizeof(T));
    T value;
    std::memcpy(&value, archive_.data() + at, sizeof(T));
    return value;
  }

  /// The number of entries, and where the first one stands.
  std::pair<std::uint64_t, std::uint64_t> directory() const {
    const std::uint64_t size = archive_.size();
    const std::uint64_t first = size < kEndBytes + kLongestComment ? 0 : size - kEndBytes - kLongestComment;
    for (std::uint64_t at = size < kEndBytes ? 0 : size - kEndBytes + 1; at-- > first;) {
      if (number<std::uint32_t>(at) != kEnd || number<std::uint16_t>(at + 20) != size - at - kEndBytes) continue;
      if (at >= kLocatorBytes && number<std::uint32_t>(at - kLocatorBytes) == kLocator64) {
        const auto end = number<std::uint64_t>(at - kLocatorBytes + 8);
        need(end, kEnd64Bytes);
        if (number<std::uint32_t>(end) != kEnd64) break;
        return {number<std::uint64_t>(end + 32), number<std::uint64_t>(end + 48)};
      }
      return {number<std::uint16_t>(at + 10), number<std::uint32_t>(at + 16)};
    }
    fail("it is not a file of torch.save, or was cut off: a zip archive ends in a directory, and this file does not.");
  }

  /// The entry at `at`, which moves behind it.
  Listed entry(std::uint64_t& at) const {
    need(at, kEntryBytes);
    if (number<std::uint32_t>(at) != kEntry) fail("its zip directory is damaged: an entry lacks its signature.");
    const auto flags = number<std::uint16_t>(at + 8), method = number<std::uint16_t>(at + 10);
    const auto crc = number<std::uint32_t>(at + 16);
    const auto stored = number<std::uint32_t>(at + 20), size = number<std::uint32_t>(at + 24);
    const auto name_bytes = number<std::uint16_t>(at + 28), extra_bytes = number<std::uint16_t>(at + 30),
               comment_bytes = number<std::uint16_t>(at + 32);
    const auto offset = number<std::uint32_t>(at + 42);
    need(at + kEntryBytes, std::uint64_t{name_bytes} + extra_bytes + comment_bytes);
    Listed listed;
    listed.name.assign(reinterpret_cast<const char*>(archive_.data()) + at + kEntryBytes, name_bytes);
    const std::string what = "its record '" + listed.name + "' ";
    if ((flags & 1) != 0) fail(what + "is encrypted, which torch.save does not do.");
    if (method != 0) fail(what + "is compressed, and torch.save stores its records as they are. Save the file again.");
    std::uint64_t field = at + kEntryBytes + name_bytes;
    const std::uint64_t extra_end = field + extra_bytes;
    std::uint64_t sizes[] = {size, stored, offset};
    while (field + 4 <= extra_end) {
      const auto id = number<std::uint16_t>(field), bytes = number<std::uint16_t>(field + 2);
      std::uint64_t value = field + 4;
      field = value + bytes;
      if (field > extra_end) break;
      if (id != 1) continue;
      for (std::uint64_t& one : sizes) {
        if (one != kIn64 || value + 8 > field) continue;
        one = number<std::uint64_t>(value);
        value += 8;
      }
    }
    if (sizes[0] != sizes[1]) fail(what + "has two sizes in the zip directory.");
    listed.record = {0, sizes[0], crc};
    listed.header = sizes[2];
    at += kEntryBytes + name_bytes + extra_bytes + comment_bytes;
    return listed;
  }

  /// Finds the record's bytes behind its local header.
  void locate(Listed& listed) const {
    need(listed.header, kLocalBytes);
    if (number<std::uint32_t>(listed.header) != kLocal) {
      fail("its record '" + listed.name + "' does not stand where the zip directory says.");
    }
    listed.record.begin = listed.header + kLocalBytes + number<std::uint16_t>(listed.header + 26) +
                          number<std::uint16_t>(listed.header + 28);
    need(listed.record.begin, listed.record.size);
  }

  void check_apart(const std::vector<Listed>& all) const {
    std::vector<const Listed*> sorted;
    for (const Listed& one : all) sorted.push_back(&one);
    std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->header < b->header; });
    std::uint64_t end = 0;
    for (const Listed* one : sorted) {
      if (one->header < end) fail("its record '" + one->name + "' overlaps another one.");
      end = one->record.begin + one->record.size;
    }
  }

  std::span<const std::byte> archive_;
  const std::string& where_;
};

}  // namespace

ZipDirectory::ZipDirectory(std::span<const std::byte> archive, const std::string& where) {
  for (Listed& one : ArchiveParser(archive, where).parse()) {
    if (!records_.emplace(one.name, one.record).second) {
      throw RuntimeFault(where + ": it has two records '" + one.name + "', and torch.save writes one.");
    }
  }
}

const ZipRecord* ZipDirectory::find(std::string_view name) const {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

}  // namespace capstan
