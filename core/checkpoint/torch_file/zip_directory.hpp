#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace capstan {

/// The bytes of one file of a zip archive.
struct ZipRecord {
  std::uint64_t begin = 0, size = 0;  // in the archive
  std::uint32_t crc32 = 0;
};

/// The central directory of a zip archive whose files are stored as they are, as torch.save writes it (APPNOTE 6.3.10
/// of PKWARE: 4.3.12 to 4.3.16, zip64 included). Checked as a whole: names are unique, and files lie within the archive
/// and apart from each other. Their CRC-32 is not looked at.
class ZipDirectory {
 public:
  /// Throws RuntimeFault that begins with `where`: no zip archive, cut off, damaged, compressed or encrypted files.
  ZipDirectory(std::span<const std::byte> archive, const std::string& where);

  /// Null: there is no file of that name.
  const ZipRecord* find(std::string_view name) const;
  const std::map<std::string, ZipRecord, std::less<>>& records() const { return records_; }

 private:
  std::map<std::string, ZipRecord, std::less<>> records_;
};

}  // namespace capstan
