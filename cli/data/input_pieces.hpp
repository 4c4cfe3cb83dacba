#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace capstan::cli {

inline constexpr std::uint64_t kToEnd = std::numeric_limits<std::uint64_t>::max();

/// Bytes [begin, end) of a file. What reads a file by ranges takes what begins in a range: a line, a row, a token; or
/// cuts a text at the first fitting place behind `begin` and `end`.
struct ByteRange {
  std::uint64_t begin = 0, end = kToEnd;
  std::uint64_t step = kToEnd;  // ranges of the file begin at multiples of it

  bool is_whole() const { return begin == 0 && end == kToEnd; }
};

/// A file that is read.
struct InputFile {
  std::string path;
  bool can_cut = false;  // pieces may hold a part of it
};

/// What one process reads at a time: whole files, one after another, or a range of one.
struct InputPiece {
  struct Part {
    std::size_t file;  // which of the inputs
    ByteRange range;
  };
  std::vector<Part> parts;
  std::uint64_t bytes = 0;
};

/// The inputs in pieces of a 64th, but 512 KiB at least and 16 MiB at most: a function of the files' sizes alone. One
/// piece for inputs of at most 2 MiB, and for inputs that are not regular files or that are descriptors of this
/// process, as /dev/fd/3 is: they are read once, from the begin to the end.
std::vector<InputPiece> input_pieces(const std::vector<InputFile>& files);

/// All inputs as one piece.
InputPiece one_piece(const std::vector<InputFile>& files);

/// "a.txt", "a.txt, bytes 0 to 16,777,216", "a.txt and 11 more files"
std::string name_of(const InputPiece& piece, const std::vector<InputFile>& files);

}  // namespace capstan::cli
