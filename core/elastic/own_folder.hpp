#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace capstan {

/// An open file, closed with the object.
class OpenFile {
 public:
  OpenFile() = default;
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OpenFile();

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_ = -1;
};

/// A folder of this user, in a place where anybody may create folders, as /dev/shm is. The owner, the mode and the type
/// are checked before anything in the folder is opened, links are not followed, and nothing blocks: a folder, a link or
/// a FIFO that another user has planted is refused with a sentence. Files are opened relative to the open folder, so
/// that a folder that is put in its place later is not used. [any thread]
class OwnFolder {
 public:
  enum class Closed {
    kToAll,     // mode 0700
    kToWriters  // others may read
  };
  /// Opens a folder. Throws RuntimeFault, which names the path, what was found there, and what to do.
  explicit OwnFolder(std::filesystem::path path, Closed closed = Closed::kToAll);
  /// Creates the folder with mode 0700 unless it exists, and the folders above it. Throws as the constructor does.
  static OwnFolder make(const std::filesystem::path& path, Closed closed = Closed::kToAll);

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return folder_.descriptor(); }
  /// Renames the folder, over an empty one where there is one. False where it fails.
  bool move_to(const std::filesystem::path& path);
  /// Whether the path still leads to this folder.
  bool is_at_its_path() const;
  /// Seconds since something was created or removed in the folder, by the system's clock.
  double seconds_since_change() const;

  /// A regular file of this user; empty where `name` does not exist and `flags` do not create it. `flags`: those of
  /// open(2). Throws RuntimeFault.
  OpenFile open(const std::string& name, int flags) const;
  /// The content of a file; nothing where `name` does not exist. Throws RuntimeFault.
  std::optional<std::string> read(const std::string& name) const;
  /// Writes a file that appears at its place as a whole. Throws RuntimeFault.
  void write(const std::string& name, const std::string& text) const;
  /// As write(), where `name` does not exist yet. Returns false where it does, and leaves it as it is.
  bool write_first(const std::string& name, const std::string& text) const;
  bool has(const std::string& name) const;
  void remove(const std::string& name) const noexcept;

 private:
  std::string write_aside(const std::string& name, const std::string& text) const;

  std::filesystem::path path_;
  OpenFile folder_;
};

/// Throws RuntimeFault, which names `path`, unless the open file is a regular one of this user.
void check_own_file(int descriptor, const std::filesystem::path& path);

/// The paths in a folder, in order; empty where it cannot be read.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder);

}  // namespace capstan
