#include "cli/data/input_pieces.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = 16 << 20, kLeastBytes = 512 << 10, kOnePiece = 2 << 20;
constexpr std::uint64_t kPieces = 64;
constexpr std::uint64_t kGrain = 64 << 10;  // a multiple of the width of every token

/// Whether a path leads to a descriptor of this process, as /dev/fd/3 does: the process of a piece does not have it.
bool is_descriptor(const std::string& path) {
  return path.starts_with("/dev/fd/") || (path.starts_with("/proc/") && path.find("/fd/") != std::string::npos);
}

/// The size of each file; nothing where one is not a regular file, whose size tells nothing, or is a descriptor.
std::optional<std::vector<std::uint64_t>> sizes_of(const std::vector<InputFile>& files) {
  std::vector<std::uint64_t> sizes;
  for (const InputFile& file : files) {
    std::error_code error;
    if (is_descriptor(file.path) || !fs::is_regular_file(file.path, error)) return std::nullopt;
    const std::uintmax_t size = fs::file_size(file.path, error);
    if (error) return std::nullopt;
    sizes.push_back(size);
  }
  return sizes;
}

std::uint64_t piece_bytes(std::uint64_t total) {
  return std::clamp(total / kPieces, kLeastBytes, kMostBytes) / kGrain * kGrain;
}

/// Fills pieces up to a size.
class Packing {
 public:
  explicit Packing(std::uint64_t step) : step_(step) {}

  void add(std::size_t file, std::uint64_t size, bool can_cut) {
    if (!now_.parts.empty() && now_.bytes + size > step_) close();
    std::uint64_t begin = 0;
    for (; can_cut && size - begin > step_; begin += step_) {
      now_.parts.push_back({file, {begin, begin + step_, step_}});
      now_.bytes = step_;
      close();
    }
    now_.parts.push_back({file, {begin, kToEnd, step_}});
    now_.bytes += size - begin;
  }
  std::vector<InputPiece> finish() {
    if (!now_.parts.empty()) close();
    return std::move(pieces_);
  }

 private:
  void close() { pieces_.push_back(std::exchange(now_, {})); }

  std::uint64_t step_;
  InputPiece now_;
  std::vector<InputPiece> pieces_;
};

}  // namespace

std::vector<InputPiece> input_pieces(const std::vector<InputFile>& files) {
  const auto sizes = sizes_of(files);
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes.value_or(std::vector<std::uint64_t>())) total += size;
  if (!sizes || total <= kOnePiece) return {one_piece(files)};
  Packing packing(piece_bytes(total));
  for (std::size_t i = 0; i < files.size(); ++i) packing.add(i, (*sizes)[i], files[i].can_cut);
  return packing.finish();
}

InputPiece one_piece(const std::vector<InputFile>& files) {
  InputPiece all;
  for (std::size_t i = 0; i < files.size(); ++i) all.parts.push_back({i, {}});
  return all;
}

std::string name_of(const InputPiece& piece, const std::vector<InputFile>& files) {
  const InputPiece::Part& first = piece.parts.front();
  const std::string& path = files[first.file].path;
  if (piece.parts.size() > 1) return path + " and " + counted(std::ssize(piece.parts) - 1, "more file", "more files");
  if (first.range.is_whole()) return path;
  const auto begin = static_cast<std::int64_t>(first.range.begin);
  return path + ", bytes " + grouped(begin) + " to " + grouped(begin + static_cast<std::int64_t>(piece.bytes));
}

}  // namespace capstan::cli
