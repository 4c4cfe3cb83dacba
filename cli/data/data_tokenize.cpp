// `capstan data tokenize`: tokens of text, by a tokenizer of Hugging Face's format.

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/end_token.hpp"
#include "cli/data/json_rows.hpp"
#include "cli/data/piece_run.hpp"
#include "cli/data/piece_store.hpp"
#include "cli/data/reading_progress.hpp"
#include "cli/data/text_documents.hpp"
#include "cli/data/token_output.hpp"
#include "cli/data/tokenizing.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/registry/file_hash.hpp"
#include "core/text/numbers.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using tokenizer::Id;
using tokenizer::Tokenizer;

/// A file of text, and its format: "text" or one of row_formats().
struct TextFile {
  std::string path, format;
};

std::vector<TextFile> text_files(const std::vector<std::string>& paths, const std::string& from) {
  std::vector<TextFile> files;
  for (const std::string& path : paths) {
    if (from.empty() && (path.ends_with(".bin") || path.ends_with(".idx"))) {
      throw UsageError("'" + path + "' holds tokens. Name files of text, or give --from text.");
    }
    const std::string rows = row_format_of(path);
    files.push_back({path, !from.empty() ? from : rows.empty() ? "text" : rows});
  }
  return files;
}

/// Prints what --verify has found. Throws RuntimeFault where a tokenizer that keeps every text has not.
void report_check(const Tokenizing::Found& found, std::int64_t documents, const Tokenizer& tokenizer) {
  if (found.different == 0) {
    log::info("verified: the tokens of " + counted(documents, "document") + " decode to the text");
    return;
  }
  const std::string text = counted(found.different, "document") + " of " + grouped(documents) +
                           (found.different == 1 ? " decodes" : " decode") + " to another text; " +
                           found.first_difference;
  if (tokenizer.keeps_every_text()) throw RuntimeFault("--verify: " + text);
  log::warning("verified: " + text +
               " This tokenizer is not lossless: it rewrites text, leaves out some, or has no token for some.");
}

/// The SHA-256 of a tokenizer's file; for a GGUF file, which holds weights as well, its size and time.
Json identity_of_tokenizer(const fs::path& file) {
  constexpr std::uintmax_t kMostHashed = 64 << 20;
  std::error_code error;
  if (fs::file_size(file, error) <= kMostHashed) return sha256_of_file(file);
  return identity_of(file);
}

/// The SHA-256 of what lies beside a model of SentencePiece or ranks of tiktoken and counts for its tokens; null for a
/// file that is missing. A tokenizer.json and a GGUF file hold all by themselves.
Json identity_of_files_beside(const fs::path& tokenizer) {
  Json all = Json::array();
  if (tokenizer.extension() == ".json" || tokenizer.extension() == ".gguf") return all;
  for (const char* name : {"tokenizer_config.json", "config.json"}) {
    const fs::path file = tokenizer.parent_path() / name;
    std::error_code error;
    all.push_back(fs::is_regular_file(file, error) ? Json(sha256_of_file(file)) : Json());
  }
  return all;
}

/// All that the tokens depend on, beside the files.
Json made_of(const DataTokenizeArguments& arguments, const std::vector<TextFile>& files, const Tokenizer& tokenizer) {
  Json json = Json::object();
  json["tokenizer"] = identity_of_tokenizer(tokenizer.file());
  json["beside_tokenizer"] = identity_of_files_beside(tokenizer.file());
  json["formats"] = Json::array();
  for (const TextFile& file : files) json["formats"].push_back(file.format);
  json["key"] = arguments.key;
  json["special_tokens"] = arguments.special_tokens;
  json["replace_invalid"] = arguments.replace_invalid;
  json["verify"] = arguments.verify;
  return json;
}

std::vector<InputFile> inputs_of(const std::vector<TextFile>& files, bool verify) {
  std::vector<InputFile> inputs;
  // A document is decoded from its first token on.
  for (const TextFile& file : files) {
    inputs.push_back({file.path, file.format == "jsonl" || (file.format == "text" && !verify)});
  }
  return inputs;
}

/// Hands the tokens of a piece to `to`.
Json read_piece(const DataTokenizeArguments& arguments, const std::vector<TextFile>& files, const Tokenizer& tokenizer,
                const InputPiece& piece, TokenSink& to, const PieceRun::OnProgress& on_progress) {
  Tokenizing tokenizing(tokenizer, arguments, to);
  TextOptions options{.key = arguments.key,
                      .replaces_invalid = arguments.replace_invalid,
                      .on_progress = on_progress,
                      .tokenizer = &tokenizer};
  for (const InputPiece::Part& part : piece.parts) {
    const TextFile& file = files[part.file];
    tokenizing.source = file.path;
    options.range = part.range;
    read_texts(file.path, file.format, options, tokenizing);
  }
  return tokenizing.found().json();
}

}  // namespace

int data_tokenize(const DataTokenizeArguments& arguments) {
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  const std::vector<TextFile> files = text_files(paths, arguments.from);
  const ModelText text(arguments.tokenizer);
  const Tokenizer& tokenizer = text.tokenizer();
  for (const std::string& member : tokenizer.unused_members()) {
    log::info(tokenizer.file().string() + ": " + member + " has no effect: documents are tokenized whole");
  }
  const Id end = end_token(text, arguments.end_token);
  std::string left = kNothingWritten;
  const auto work = [&] {
    TokenOutput output(tokenizer, {.out = arguments.out, .inputs = paths, .end_token = end, .force = arguments.force});
    ReadingProgress progress(paths);
    Tokenizing::Found found;
    const auto finish = [&] {
      if (arguments.verify) report_check(found, output.documents(), tokenizer);
      output.finish();
    };
    const auto read = [&](const InputPiece& piece, TokenSink& to, const PieceRun::OnProgress& on_progress) {
      return read_piece(arguments, files, tokenizer, piece, to, on_progress);
    };
    run_in_pieces({.result = arguments.out,
                   .files = inputs_of(files, arguments.verify),
                   .made_of = made_of(arguments, files, tokenizer),
                   .type = output.type(),
                   .processes = arguments.processes,
                   .read = read,
                   .found = [&](const Json& more) { found.add(Tokenizing::Found(more)); },
                   .finish = finish},
                  output, progress, left);
    const std::string left_out = counted(found.empty, "document") + " without text left out";
    print(output.summary() + (found.empty > 0 ? "; " + left_out : "") + "\n");
    if (const std::string rate = progress.rate_text(); !rate.empty()) log::info("read at " + rate);
  };
  return run_interruptible(work, left);
}

}  // namespace capstan::cli
