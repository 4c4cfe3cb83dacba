#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cli/data/reading_progress.hpp"

namespace capstan::cli {

/// Work in pieces, each of which a process does by itself.
struct PieceWork {
  std::size_t count = 0;
  std::function<bool(std::size_t piece)> is_done;         // by an earlier run
  std::function<std::uint64_t(std::size_t piece)> bytes;  // that a piece reads
  std::function<std::string(std::size_t piece)> name;     // "a.txt, bytes 0 to 5", for messages
  /// Does a piece, in a copy of this process. read(bytes) tells how far it is. May throw.
  std::function<void(std::size_t piece, const std::function<void(std::uint64_t bytes)>& read)> run;
};

/// Does all pieces that are not done, up to `processes` at a time, in their order. Processes and not threads: a crash
/// ends one process, and this one tells in which piece; and each gives its memory back at the end of a piece. Throws
/// RuntimeFault with the error of the first piece that has one, whatever the number of processes, and what
/// check_interrupts() throws; no process is left then. This process must have one thread.
void run_pieces(const PieceWork& work, int processes, ReadingProgress& progress);

}  // namespace capstan::cli
