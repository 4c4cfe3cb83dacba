// `capstan data tokenize`: tokens of text, by a tokenizer of Hugging Face's format.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/end_token.hpp"
#include "cli/data/reading_progress.hpp"
#include "cli/data/round_trip.hpp"
#include "cli/data/text_documents.hpp"
#include "cli/data/token_output.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"
#include "core/text/tokenizer/document_encoder.hpp"

namespace capstan::cli {
namespace {

using tokenizer::Id;
using tokenizer::Ids;
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

/// Writes the tokens of texts.
class Tokenizing final : public TextSink {
 public:
  Tokenizing(const Tokenizer& tokenizer, const DataTokenizeArguments& arguments, TokenOutput& to)
      : before_(arguments.special_tokens ? tokenizer.before() : Ids{}),
        after_(arguments.special_tokens ? tokenizer.after() : Ids{}),
        to_(to),
        encoder_(tokenizer, [this](std::span<const Id> ids) { take(ids); }) {
    if (arguments.verify) check_.emplace(tokenizer);
  }

  void append(std::string_view text) override {
    if (text.empty()) return;
    if (!in_document_) to_.append(before_);
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
    to_.append(after_);
    to_.end_document();
    in_document_ = false;
  }

  const std::optional<RoundTrip>& check() const { return check_; }

  std::string source;      // the file that is read
  std::int64_t empty = 0;  // documents

 private:
  void take(std::span<const Id> ids) {
    if (check_) check_->take(ids);
    to_.append(ids);
  }

  Ids before_, after_;
  TokenOutput& to_;
  tokenizer::DocumentEncoder encoder_;
  std::optional<RoundTrip> check_;
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
  return run_interruptible([&] {
    TokenOutput output(tokenizer, {.out = arguments.out, .inputs = paths, .end_token = end, .force = arguments.force});
    Tokenizing tokenizing(tokenizer, arguments, output);
    ReadingProgress progress(paths);
    const TextOptions options{
        .key = arguments.key, .replaces_invalid = arguments.replace_invalid, .on_progress = [&](std::uint64_t bytes) {
          check_interrupts();
          progress.add(bytes);
        }};
    for (const TextFile& file : files) {
      tokenizing.source = file.path;
      read_texts(file.path, file.format, options, tokenizing);
    }
    if (tokenizing.check()) report_check(*tokenizing.check(), output.documents(), tokenizer);
    output.finish();
    const std::string left_out = counted(tokenizing.empty, "document") + " without text left out";
    print(output.summary() + (tokenizing.empty > 0 ? "; " + left_out : "") + "\n");
    log::info("read at " + progress.rate_text());
  });
}

}  // namespace capstan::cli
