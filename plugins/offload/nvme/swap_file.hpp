#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"

namespace capstan::offload {

/// A folder that is there while this lives: what had to be made for it is removed at the end, unless others use it.
class Folder {
 public:
  /// Throws sdk::Error: the path is empty, a file, a link to nothing, or cannot be made.
  explicit Folder(std::filesystem::path path);
  ~Folder();
  Folder(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  void make(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;
};

/// A file without a name: its space goes back to the file system when the process ends, however that ends. Read and
/// written past the page cache where the file system can. Not thread-safe.
class SwapFile {
 public:
  /// Says in a notice what is slow or no disk at all. Throws sdk::Error with the path and errno's text.
  SwapFile(const std::filesystem::path& folder, const sdk::Host& host);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;

  int descriptor() const { return file_; }
  const std::filesystem::path& folder() const { return folder_.path(); }
  /// A power of two: what travels is a multiple of it, and so are memory and offset. 1: anything travels.
  std::uint32_t alignment() const { return alignment_; }
  /// What the size of a request must be a multiple of.
  std::uint32_t request_unit() const { return unit_; }
  std::uint64_t free_bytes() const;

  /// Takes room on the disk; returns its offset in the file, a multiple of the alignment, as is the room's end. Throws
  /// sdk::Error when it is not to be had; `what` names it there.
  std::uint64_t reserve(const std::string& what, std::uint64_t bytes);
  /// Gives that room back to the file system.
  void release(std::uint64_t at, std::uint64_t bytes);

  /// Has a file that is not read and written past the page cache leave it again.
  void leave_cache(std::uint64_t at, std::uint64_t bytes) const;

 private:
  void open_unnamed();
  bool open_as(bool direct, bool named);
  void find_alignment();
  bool takes_direct() const;
  void say_what_it_is(const sdk::Host& host) const;
  std::uint64_t rounded(std::uint64_t bytes) const;
  std::uint64_t place(std::uint64_t bytes);
  void allocate(const std::string& what, std::uint64_t at, std::uint64_t bytes);
  [[noreturn]] void fail_to_reserve(const std::string& what, std::uint64_t bytes, int error) const;

  Folder folder_;
  int file_ = -1;
  bool direct_ = true;
  std::uint32_t alignment_ = 1, unit_ = 512;
  std::uint64_t end_ = 0, reserved_ = 0;
  std::map<std::uint64_t, std::uint64_t> gaps_;  // offset -> bytes, below end_
};

/// "48 MB", and bytes below that.
std::string bytes_text(std::uint64_t bytes);

}  // namespace capstan::offload
