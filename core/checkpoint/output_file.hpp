#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

namespace capstan {

/// A new file on its way to the disk. Removed again unless finish() was reached.
///
/// Every failure is a RuntimeFault with the path, the byte and the system's reason.
class OutputFile {
 public:
  /// Creates the file, or empties it.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends. Large pieces go to the system as they are, small ones are gathered first.
  void write(const void* bytes, std::size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes what is gathered, syncs, closes.
  void finish();
  std::uint64_t position() const { return position_; }

 private:
  void flush();
  void write_through(const std::byte* bytes, std::size_t count);
  [[noreturn]] void fail(const char* what, int reason) const;

  std::filesystem::path path_;
  int descriptor_;
  std::vector<std::byte> gathered_;
  std::uint64_t position_ = 0;  // where the next byte is appended
  std::uint64_t written_ = 0;
};

/// Writes a whole file and syncs it.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Syncs a folder, so that the names in it are on the disk. Throws RuntimeFault.
void sync_folder(const std::filesystem::path& folder);

/// Creates a folder and those above it, and syncs the folders that got a new name. Throws RuntimeFault.
void create_folders(const std::filesystem::path& folder);

/// rename(2) and a sync of the folder; `from` and `to` stand in the same one. Throws RuntimeFault.
void rename_synced(const std::filesystem::path& from, const std::filesystem::path& to);

/// Calls `write` with a path beside `path`, then renames what it wrote and synced there to `path`: until then an older
/// file stays as it was. A link stays, and its target is replaced; `write` gets a device or a pipe as it is. Throws
/// what `write` throws, and RuntimeFault.
void write_aside(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);

}  // namespace capstan
