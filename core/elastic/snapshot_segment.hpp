#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace capstan {

/// Which snapshot, and whose part of it, a segment holds.
struct SnapshotFacts {
  std::int64_t generation = 0;       // the world that made it, counted by the launcher
  std::int64_t sequence = 0;         // counts the snapshots of that generation from 1
  std::int64_t step = 0;             // steps that the run had done
  std::int64_t world = 1, rank = 0;  // ranks of that generation, and the one whose part this is
  std::uint64_t layout = 0;          // tells apart runs whose tensors are others
};

/// Bytes of what a segment holds.
struct SnapshotSizes {
  std::uint64_t index = 0;    // text: which tensors there are, and where
  std::uint64_t digests = 0;  // XXH3-64 of each tensor, 8 bytes each
  std::uint64_t data = 0;     // values of tensors
  std::uint64_t state = 0;    // text of state.json; empty but on rank 0

  /// Bytes of the whole file.
  std::uint64_t file() const;
};

/// Bytes of a segment's head.
inline constexpr std::uint64_t kSnapshotHead = 4096;

/// A file in shared memory that this process writes snapshots to, one over the other. Its pages outlive the process. It
/// is sealed with a checksum of its header once everything is in place, and unsealed before anything of it changes, so
/// that whoever reads it finds a whole snapshot or none, at whatever instant the process is killed. [one thread]
class SnapshotSegment {
 public:
  explicit SnapshotSegment(std::filesystem::path path);
  ~SnapshotSegment();
  SnapshotSegment(const SnapshotSegment&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Bytes of memory that the file has, also one that another process has left.
  std::uint64_t allocated() const;
  /// Makes room for `wanted` bytes unless there is some for `least`: pages that exist, not a sparse file, mapped and
  /// touched. What the file holds stays. Throws RuntimeFault with the system's reason; the room is then what it was.
  void reserve(std::uint64_t least, std::uint64_t wanted);
  /// Unseals the file, to be filled anew. There is room for `sizes`.
  void open(const SnapshotSizes& sizes);
  std::span<std::byte> index();
  std::span<std::byte> digests();
  std::span<std::byte> data();
  std::span<std::byte> state();
  /// Everything is in place. `facts` and the checksums of all but the data, which the digests cover, are written.
  void seal(const SnapshotFacts& facts);

  /// The same for a copy of another segment: unseals the file, to be filled with the other's body(). There is room for
  /// as many bytes.
  std::span<std::byte> open_copy(std::uint64_t body_bytes);
  /// The copy is in place; `head`: the other's.
  void seal_copy(std::span<const std::byte> head);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::byte* memory_ = nullptr;
  std::uint64_t capacity_ = 0;
  SnapshotSizes sizes_;
};

/// A sealed segment, to be read. The texts and digests are those that were sealed; values must be compared with their
/// digest.
class SealedSegment {
 public:
  /// Empty where the file is not sealed. Throws RuntimeFault naming the file where it is cut off, damaged, or not a
  /// snapshot of this program.
  static std::optional<SealedSegment> read(const std::filesystem::path& file);

  const SnapshotFacts& facts() const { return facts_; }
  const std::filesystem::path& path() const { return path_; }
  std::string_view index() const;
  std::uint64_t digest_count() const { return sizes_.digests / sizeof(std::uint64_t); }
  std::uint64_t digest(std::uint64_t tensor) const;
  std::string_view state() const;
  /// Values of tensors; positions in the index count from its first byte.
  std::span<const std::byte> data() const;
  /// All bytes of the file that belong to the snapshot: its head with the seal, and what follows.
  std::span<const std::byte> bytes() const;
  std::span<const std::byte> head() const;
  std::span<const std::byte> body() const;
  /// Keeps the bytes mapped.
  std::shared_ptr<const void> memory() const { return memory_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> memory_;
  SnapshotFacts facts_;
  SnapshotSizes sizes_;
};

}  // namespace capstan
