#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/input_pieces.hpp"
#include "cli/data/reading_progress.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// How a command makes tokens of its inputs, in pieces.
struct PieceRun {
  using OnProgress = std::function<void(std::uint64_t bytes)>;

  std::filesystem::path result;  // whose name the pieces get while they wait
  std::vector<InputFile> files;
  Json made_of;           // all that the tokens depend on, beside the files
  sdk::IndexedType type;  // that holds the tokens
  int processes = 0;      // at a time; 0: as many as there are cores for this process, 16 at most
  bool in_pieces = true;  // false: the result takes no pieces, and is written in one go
  /// Hands the tokens of a piece to `to`, and returns what it has found beside them.
  std::function<Json(const InputPiece& piece, TokenSink& to, const OnProgress& on_progress)> read;
  std::function<void(const Json&)> found;  // gets what was found, in the order of the pieces
  std::function<void()> finish;            // makes the result whole, once all tokens are there
};

/// Hands all tokens to `to`, in the order of the inputs, and finishes: the same bytes for any number of processes.
/// Inputs of one piece are read in this process. Of others, pieces that are done stay where a run is ended, by SIGKILL
/// too, and the next run goes on from them; a log line tells so, or `left`, which is printed after an interrupt. Throws
/// RuntimeFault also where an input changes meanwhile, sdk::Error, and what check_interrupts() throws.
void run_in_pieces(const PieceRun& run, TokenSink& to, ReadingProgress& progress, std::string& left);

}  // namespace capstan::cli
