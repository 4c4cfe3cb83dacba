#include "cli/data/piece_store.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "capstan/sdk/token_pieces.hpp"
#include "cli/data/data_output.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"
#include "core/registry/file_hash.hpp"
#include "core/text/numbers.hpp"
#include "core/text/text_file.hpp"
#include "core/version.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunk = 1 << 16;
constexpr std::string_view kUnfinished = ".part";

bool is_unfinished(const fs::path& file) {
  return file.filename().string().find(kUnfinished) != std::string::npos || file.extension() == ".sizes";
}

/// Removes the files of pieces for which `wanted` is true, and returns how many.
std::size_t remove_files(const fs::path& folder, const std::function<bool(const fs::path&)>& wanted) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (sdk::is_piece_file(entry.path().filename().string()) && wanted(entry.path())) files.push_back(entry.path());
  }
  for (const fs::path& file : files) {
    if (!fs::remove(file, error) && error) {
      throw RuntimeFault("'" + file.string() + "' is of another run and cannot be removed: " + error.message() + ".");
    }
  }
  return files.size();
}

std::string fingerprint(const Json& made_of) {
  Json all = Json::object();
  all["capstan"] = version();
  all["made_of"] = made_of;
  const std::string text = all.dump();
  bool given = false;
  return sha256_of([&]() -> std::span<const std::byte> {
    return std::exchange(given, true) ? std::span<const std::byte>() : std::as_bytes(std::span(text));
  });
}

/// The facts of a piece, which are there when all of it is.
std::optional<Json> facts_of(const std::string& name) {
  std::error_code error;
  for (const char* suffix : {".idx", ".bin", ".json"}) {
    if (!fs::is_regular_file(name + suffix, error)) return std::nullopt;
  }
  try {
    return parse_json_text(read_text_file(name + ".json"), name + ".json");
  } catch (const RuntimeFault&) {
    return std::nullopt;  // the system went down while the file was on its way to the disk
  }
}

}  // namespace

Json identity_of(const fs::path& file) {
  std::error_code error;
  Json identity = Json::array();
  identity.push_back(file.string());
  const std::uintmax_t size = fs::file_size(file, error);
  if (!error) identity.push_back(static_cast<std::int64_t>(size));
  const fs::file_time_type time = fs::last_write_time(file, error);
  if (!error) identity.push_back(static_cast<std::int64_t>(time.time_since_epoch().count()));
  return identity;
}

Json identity_of(const std::vector<InputFile>& files) {
  Json all = Json::array();
  for (const InputFile& file : files) all.push_back(identity_of(fs::path(file.path)));
  return all;
}

PieceStore::PieceStore(const fs::path& result, const Json& made_of, std::size_t count)
    : folder_(result.string() + ".parts"), prefix_(fingerprint(made_of).substr(0, sdk::kPiecePrefix)), count_(count) {
  std::error_code error;
  fs::create_directory(folder_, error);
  if (error) throw RuntimeFault("'" + folder_.string() + "' cannot be created: " + error.message() + ".");
  remove_unfinished();
  const std::size_t of_others =
      remove_files(folder_, [&](const fs::path& file) { return !file.filename().string().starts_with(prefix_); });
  if (of_others > 0) {
    log::info(folder_.string() +
              ": the parts there are of another run, with other inputs, options or tokenizer; they are removed");
  }
}

bool PieceStore::has(std::size_t piece) const { return facts_of(name(piece)).has_value(); }

std::size_t PieceStore::finished() const {
  std::size_t count = 0;
  for (std::size_t piece = 0; piece < count_; ++piece) count += has(piece) ? 1 : 0;
  return count;
}

std::string PieceStore::name(std::size_t piece) const {
  char number[24];
  std::snprintf(number, sizeof number, "-%06zu", piece);
  return (folder_ / (prefix_ + number)).string();
}

Json PieceStore::facts(std::size_t piece) const {
  if (auto facts = facts_of(name(piece))) return *std::move(facts);
  throw RuntimeFault(name(piece) + ".idx: was removed by another process. Run the command again.");
}

void PieceStore::read(std::size_t piece, TokenSink& to) const {
  const sdk::IndexedRows rows(name(piece));
  rows.check();
  std::vector<std::int64_t> chunk;
  std::int64_t document = 1;  // the next that begins
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    for (std::int64_t at = 0; at < rows.size(row); at += kChunk) {
      check_interrupts();
      chunk.resize(static_cast<std::size_t>(std::min(kChunk, rows.size(row) - at)));
      rows.read(rows.begin(row) + at, std::ssize(chunk), chunk.data());
      to.append(chunk);
    }
    if (document >= rows.documents() || rows.document(document) != row + 1) continue;
    to.end_document();
    ++document;
  }
}

std::string PieceStore::left() const {
  const auto done = static_cast<std::int64_t>(finished());
  if (done == 0) return "";
  return grouped(done) + " of " + counted(static_cast<std::int64_t>(count_), "piece") + (done == 1 ? " is" : " are") +
         " done and kept in '" + folder_.string() + "': the same command goes on from there";
}

void PieceStore::remove_unfinished() const { remove_files(folder_, is_unfinished); }

void PieceStore::remove() const {
  remove_files(folder_, [](const fs::path&) { return true; });
  std::error_code error;
  fs::remove(folder_, error);  // stays where somebody else has put a file into it
}

void PieceWriter::append(std::span<const std::int64_t> tokens) {
  rows_.append(tokens);
  open_ = true;
}

void PieceWriter::end_document() {
  rows_.end_row();
  rows_.end_document();
  open_ = false;
}

void PieceWriter::finish() {
  if (open_) rows_.end_row();
  // First, so that the facts are there when the piece is.
  replace_file(name_ + ".json", facts.dump());
  rows_.finish();
}

}  // namespace capstan::cli
