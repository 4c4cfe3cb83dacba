#include "cli/data/piece_run.hpp"

#include <algorithm>
#include <cstddef>
#include <thread>

#include "cli/data/data_output.hpp"
#include "cli/data/piece_processes.hpp"
#include "cli/data/piece_store.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

void check_unchanged(const std::vector<InputFile>& files, const Json& before) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (identity_of(std::filesystem::path(files[i].path)).dump() == before.as_array()[i].dump()) continue;
    throw RuntimeFault("'" + files[i].path + "' has changed while it was read. Run the command again.");
  }
}

int processes_for(int wanted) {
  constexpr int kMost = 16;  // a process takes 10 to 20 MB beside the tokenizer, which all share
  return wanted > 0 ? wanted : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMost);
}

void read_pieces(const PieceRun& run, const std::vector<InputPiece>& pieces, const PieceStore& store,
                 ReadingProgress& progress) {
  run_pieces({.count = pieces.size(),
              .is_done = [&](std::size_t piece) { return store.has(piece); },
              .bytes = [&](std::size_t piece) { return pieces[piece].bytes; },
              .name = [&](std::size_t piece) { return name_of(pieces[piece], run.files); },
              .run =
                  [&](std::size_t piece, const PieceRun::OnProgress& on_progress) {
                    PieceWriter writer(store.name(piece), run.type);
                    writer.facts = run.read(pieces[piece], writer, on_progress);
                    writer.finish();
                  }},
             processes_for(run.processes), progress);
}

/// Removes what cannot be used, and tells what can.
void leave(const PieceStore& store, std::string& left) {
  store.remove_unfinished();
  const std::string text = store.left();
  if (text.empty()) return store.remove();
  left = "interrupted; " + text;
  if (!is_interrupted()) log::info(text);
}

}  // namespace

void run_in_pieces(const PieceRun& run, TokenSink& to, ReadingProgress& progress, std::string& left) {
  const std::vector<InputPiece> pieces =
      run.in_pieces ? input_pieces(run.files) : std::vector<InputPiece>{one_piece(run.files)};
  if (pieces.size() == 1) {
    const auto on_progress = [&](std::uint64_t bytes) {
      check_interrupts();
      progress.add(bytes);
    };
    run.found(run.read(pieces.front(), to, on_progress));
    return run.finish();
  }
  Json made_of = Json::object();
  made_of["files"] = identity_of(run.files);
  made_of["run"] = run.made_of;
  made_of["type"] = sdk::name_of(run.type);
  made_of["pieces"] = static_cast<std::int64_t>(pieces.size());
  made_of["bytes"] = static_cast<std::int64_t>(pieces.front().bytes);
  const PieceStore store(run.result, made_of, pieces.size());
  if (const std::size_t done = store.finished(); done > 0) {
    log::info(run.result.string() + ": goes on from " + grouped(static_cast<std::int64_t>(done)) + " of " +
              grouped(std::ssize(pieces)) + " pieces that an earlier run has done");
  }
  try {
    read_pieces(run, pieces, store, progress);
    check_unchanged(run.files, made_of.at("files"));
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
      run.found(store.facts(piece));
      store.read(piece, to);
    }
    run.finish();
  } catch (...) {
    leave(store, left);
    throw;
  }
  store.remove();
}

}  // namespace capstan::cli
