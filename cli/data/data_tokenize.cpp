// `capstan data tokenize`: tokens of text, by a tokenizer of Hugging Face's format.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/end_token.hpp"
#include "cli/data/round_trip.hpp"
#include "cli/data/text_documents.hpp"
#include "cli/data/token_record.hpp"
#include "cli/program.hpp"
#include "cli/progress_bar.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"
#include "core/text/tokenizer/document_encoder.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using tokenizer::Id;
using tokenizer::Ids;
using tokenizer::kNoId;
using tokenizer::Tokenizer;

/// A file of text, and whether its lines are documents.
struct TextFile {
  std::string path, format;
};

std::vector<TextFile> text_files(const std::vector<std::string>& paths, const std::string& from) {
  std::vector<TextFile> files;
  for (const std::string& path : paths) {
    if (from.empty() && (path.ends_with(".bin") || path.ends_with(".idx"))) {
      throw UsageError("'" + path + "' holds tokens. Name files of text, or give --from text.");
    }
    files.push_back({path, !from.empty() ? from : path.ends_with(".jsonl") ? "jsonl" : "text"});
  }
  return files;
}

/// NAME.idx and NAME.bin, or one file.
std::string format_of_out(const std::string& out) {
  if (out.ends_with(".bin")) return "flat";
  if (out.ends_with(".idx")) return "indexed";
  throw UsageError(
      "--out: must end in .bin, for tokens alone, or in .idx, for documents as Megatron-LM has them; got '" + out +
      "'.");
}

std::uint64_t bytes_of_files(const std::vector<TextFile>& files) {
  std::uint64_t bytes = 0;
  for (const TextFile& file : files) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(file.path, error);
    if (!error) bytes += size;
  }
  return bytes;
}

/// "412 MB of 1.02 GB  31.2 MB/s  ETA 0:00:20", drawn over itself on a terminal.
class ReadingProgress {
 public:
  explicit ReadingProgress(std::uint64_t bytes) : bar_(true), bytes_(bytes) {}

  void add(std::uint64_t bytes) {
    done_ += bytes;
    const double rate = this->rate();
    if (rate <= 0) return;
    const double left = static_cast<double>(bytes_ - std::min(done_, bytes_)) / rate;
    bar_.show(bytes_text(done_) + " of " + bytes_text(bytes_) + "  " + rate_text() + "  ETA " + duration_text(left));
  }
  std::string rate_text() const { return bytes_text(static_cast<std::uint64_t>(rate())) + "/s"; }

 private:
  double rate() const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    return passed.count() > 0 ? static_cast<double>(done_) / passed.count() : 0;
  }

  ProgressBar bar_;
  std::uint64_t bytes_, done_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Writes the tokens of texts.
class Tokenizing final : public TextSink {
 public:
  Tokenizing(const Tokenizer& tokenizer, const DataTokenizeArguments& arguments, Id end, TokenSink& to)
      : end_(end),
        before_(arguments.special_tokens ? tokenizer.before() : Ids{}),
        after_(arguments.special_tokens ? tokenizer.after() : Ids{}),
        to_(to),
        encoder_(tokenizer, [this](std::span<const Id> ids) { take(ids); }) {
    if (arguments.verify) check_.emplace(tokenizer);
  }

  void append(std::string_view text) override {
    if (text.empty()) return;
    if (!in_document_) put(before_);
    in_document_ = true;
    if (check_) check_->expect(text);
    encoder_.append(text);
  }
  void end_document() override {
    if (!in_document_) {
      ++empty;
      return;
    }
    encoder_.finish();
    if (check_) check_->end_document(source);
    put(after_);
    if (end_ != kNoId && last_ != end_) put({&end_, 1});
    to_.end_document();
    last_ = kNoId;
    in_document_ = false;
    ++documents;
  }

  const std::optional<RoundTrip>& check() const { return check_; }

  std::string source;  // the file that is read
  std::int64_t documents = 0, empty = 0, tokens = 0;
  Id largest = 0;

 private:
  void take(std::span<const Id> ids) {
    if (check_) check_->take(ids);
    put(ids);
  }
  void put(std::span<const Id> ids) {
    if (ids.empty()) return;
    largest = std::max(largest, *std::max_element(ids.begin(), ids.end()));
    last_ = ids.back();
    tokens += static_cast<std::int64_t>(ids.size());
    wide_.assign(ids.begin(), ids.end());
    to_.append(wide_);
  }

  Id end_, last_ = kNoId;
  Ids before_, after_;
  TokenSink& to_;
  tokenizer::DocumentEncoder encoder_;
  std::optional<RoundTrip> check_;
  std::vector<std::int64_t> wide_;
  bool in_document_ = false;
};

/// Prints what --verify has found. Throws RuntimeFault where a tokenizer that keeps every text has not.
void report_check(const RoundTrip& check, std::int64_t documents, const Tokenizer& tokenizer) {
  if (check.different() == 0) {
    log::info("verified: the tokens of " + counted(documents, "document") + " decode to the text");
    return;
  }
  const std::string found = counted(check.different(), "document") + " of " + grouped(documents) +
                            (check.different() == 1 ? " decodes" : " decode") + " to another text; " +
                            check.first_difference();
  if (tokenizer.keeps_every_text()) throw RuntimeFault("--verify: " + found);
  log::warning("verified: " + found +
               " This tokenizer is not lossless: it rewrites text, leaves out some, or has no token for some.");
}

std::string summary(const Tokenizing& made, const std::string& out, const std::string& type) {
  return out + ": " + counted(made.documents, "document") + ", " + counted(made.tokens, "token") + " of " + type +
         (made.empty > 0 ? "; " + counted(made.empty, "document") + " without text left out" : "") + "\n";
}

}  // namespace

int data_tokenize(const DataTokenizeArguments& arguments) {
  const bool indexed = format_of_out(arguments.out) == "indexed";
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  const std::vector<TextFile> files = text_files(paths, arguments.from);
  std::vector<fs::path> results = {arguments.out};
  if (indexed) results = result_files(arguments.out.substr(0, arguments.out.size() - 4), "indexed");
  refuse_inputs_as_results(results, paths);
  const Tokenizer tokenizer(arguments.tokenizer);
  for (const std::string& member : tokenizer.unused_members()) {
    log::info(tokenizer.file().string() + ": " + member + " has no effect: documents are tokenized whole");
  }
  const Id end = end_token(tokenizer, arguments.end_token);
  const bool narrow = tokenizer.vocabulary_size() <= 65536;
  const sdk::IndexedType type = narrow    ? sdk::IndexedType::kU16
                                : indexed ? sdk::IndexedType::kI32
                                          : sdk::IndexedType::kU32;
  watch_interrupts();
  try {
    const auto sink = make_sink(arguments.out, indexed ? "indexed" : sdk::name_of(type), type, {.on_chunk = {}});
    // Now that no other process writes there.
    if (!arguments.force) refuse_to_replace(results);
    Tokenizing tokenizing(tokenizer, arguments, end, *sink);
    ReadingProgress progress(bytes_of_files(files));
    const TextOptions options{
        .key = arguments.key, .replaces_invalid = arguments.replace_invalid, .on_progress = [&](std::uint64_t bytes) {
          check_interrupts();
          progress.add(bytes);
        }};
    for (const TextFile& file : files) {
      tokenizing.source = file.path;
      read_texts(file.path, file.format, options, tokenizing);
    }
    if (tokenizing.tokens == 0) throw RuntimeFault("the inputs hold no text.");
    if (tokenizing.check()) report_check(*tokenizing.check(), tokenizing.documents, tokenizer);
    // A record of older data must not stand beside these.
    fs::remove(record_file(arguments.out));
    sink->finish();
    TokenRecord{.format = sdk::name_of(type),
                .documents = tokenizing.documents,
                .tokens = tokenizing.tokens,
                .largest_token = tokenizing.largest,
                .vocabulary_size = tokenizer.vocabulary_size(),
                .end_token = end,
                .tokenizer = tokenizer.file()}
        .write(arguments.out);
    print(summary(tokenizing, arguments.out, sdk::name_of(type)));
    log::info("read at " + progress.rate_text());
  } catch (const Interrupted&) {
    log::info("interrupted; nothing was written");
    return static_cast<int>(ExitCode::kInterrupted);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
  return 0;
}

}  // namespace capstan::cli
