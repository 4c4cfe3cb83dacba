#include "cli/data/show_rows.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/data/data_formats.hpp"
#include "cli/data/indexed_documents.hpp"
#include "cli/data/json_rows.hpp"
#include "cli/data/shown_document.hpp"
#include "cli/data/token_record.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/pretrained/model_text.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

/// Thrown behind the last row that is shown: there is no need to read on.
struct Enough {};

/// The tokenizer that --tokenizer names, or else the record of the tokens; nothing where none is known.
std::optional<ModelText> text_of(const DataShowArguments& arguments, const std::optional<TokenRecord>& record) {
  if (!arguments.tokenizer.empty()) return ModelText(arguments.tokenizer);
  std::string missing = arguments.file + " has no record of its tokenizer";
  if (record && !record->tokenizer.empty()) {
    const std::string tokenizer = record->tokenizer.string();
    if (record->has_same_tokenizer()) return ModelText(record->tokenizer);
    missing = "tokenizer " + tokenizer + ", which the record of " + arguments.file + " names, " +
              (std::filesystem::exists(record->tokenizer) ? "has other bytes since" : "is not there");
  }
  log::info("numbers are shown, as " + missing + "; name one with --tokenizer");
  return std::nullopt;
}

/// A document of which the first tokens are known.
struct BeginOfDocument {
  std::string heading;
  std::vector<std::int64_t> tokens;
  std::vector<bool> counts;                // of these tokens; empty: there is no mask
  std::int64_t size = 0, in_the_loss = 0;  // tokens of the whole document
};

void print_document(const BeginOfDocument& document, const DocumentView& view) {
  std::string title = document.heading + ": " + counted(document.size, view.is_bytes ? "byte" : "token");
  if (!document.counts.empty()) title += ", " + grouped(document.in_the_loss) + " in the loss";
  const std::int64_t hidden = document.size - std::ssize(document.tokens);
  print(Terminal(1).bold(title) + "\n" + document_text(document.tokens, document.counts, hidden, view));
}

/// Of `size` tokens those that are shown.
std::int64_t shown(std::int64_t size, const DataShowArguments& arguments) {
  return arguments.most_tokens > 0 ? std::min(size, arguments.most_tokens) : size;
}

[[noreturn]] void refuse_first(const DataShowArguments& arguments, std::int64_t rows) {
  throw RuntimeFault("--first: " + arguments.file + " has " + counted(rows, "row") + ", numbered from 0; got " +
                     grouped(arguments.first) + ".");
}

/// An index with what lies beside it: rows may hold several documents, and a loss mask tells what counts.
void show_index(const DataShowArguments& arguments, const DocumentView& view) {
  const IndexedDocuments documents(arguments.file);
  if (arguments.first >= documents.rows()) refuse_first(arguments, documents.rows());
  const std::int64_t end = std::min(documents.rows() - arguments.first, arguments.rows) + arguments.first;
  for (std::int64_t row = arguments.first; row < end; ++row) {
    for (std::int64_t i = documents.first_document(row); i < documents.first_document(row + 1); ++i) {
      const IndexedDocuments::Place place = documents.document(i);
      const IndexedDocuments::Place begin = {place.begin, shown(place.size, arguments)};
      BeginOfDocument document{.heading = "row " + grouped(row),
                               .tokens = documents.read(begin),
                               .counts = {},
                               .size = place.size,
                               .in_the_loss = documents.counted(place)};
      if (documents.is_packed()) document.heading += ", document " + grouped(i);
      for (std::int64_t at = 0; documents.has_mask() && at < begin.size; ++at) {
        document.counts.push_back(documents.counts(place.begin + at));
      }
      print_document(document, view);
    }
  }
}

/// Prints documents as they are read, each of which is a row.
class RowPrinter final : public TokenSink {
 public:
  RowPrinter(const DataShowArguments& arguments, const DocumentView& view) : arguments_(arguments), view_(view) {}

  void append(std::span<const std::int64_t> tokens) override {
    if (row < arguments_.first) return;
    document_.size += std::ssize(tokens);
    const std::int64_t room = shown(document_.size, arguments_) - std::ssize(document_.tokens);
    document_.tokens.insert(document_.tokens.end(), tokens.begin(), tokens.begin() + room);
  }
  void end_document() override {
    document_.heading = "row " + grouped(row);
    if (row >= arguments_.first) print_document(document_, view_);
    document_ = {};
    if (++row - arguments_.first == arguments_.rows) throw Enough{};
  }
  void finish() override {}

  std::int64_t row = 0;  // the next

 private:
  const DataShowArguments& arguments_;
  const DocumentView& view_;
  BeginOfDocument document_;
};

}  // namespace

void show_rows(const DataShowArguments& arguments, const std::string& format) {
  const bool is_text = format == "bytes" || is_row_format(format);
  const std::optional<TokenRecord> record = TokenRecord::read_of(arguments.file, format);
  const std::optional<ModelText> text = is_text ? std::nullopt : text_of(arguments, record);
  const DocumentView view{
      .tokenizer = text ? &text->tokenizer() : nullptr, .is_bytes = is_text, .has_colour = Terminal(1).has_colour()};
  if (format == "indexed") return show_index(arguments, view);
  RowPrinter printer(arguments, view);
  const std::int64_t end = end_of_documents(arguments.end_token, record);
  try {
    read_tokens(arguments.file, format, {.key = arguments.key, .end_token = end, .on_chunk = {}}, printer);
  } catch (const Enough&) {
    return;
  }
  if (printer.row <= arguments.first) refuse_first(arguments, printer.row);
}

}  // namespace capstan::cli
