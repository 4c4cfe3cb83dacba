#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace capstan {

/// A copy of a file in memory that nobody can change any more, so that the bytes that were hashed are the bytes that
/// are loaded, whatever becomes of the file.
class SealedFile {
 public:
  /// Throws PluginError.
  explicit SealedFile(const std::filesystem::path& file);
  ~SealedFile();
  SealedFile(SealedFile&& other) noexcept : copy_(std::exchange(other.copy_, -1)) {}
  SealedFile& operator=(SealedFile&&) = delete;

  /// The path by which this process opens the copy; valid as long as this object.
  std::filesystem::path path() const;

 private:
  int copy_ = -1;
};

}  // namespace capstan
