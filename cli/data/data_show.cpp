// `capstan data show`: what a file of tokens, or an index of a metric, is; or the text of its rows.

#include <algorithm>
#include <filesystem>
#include <limits>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/indexed_documents.hpp"
#include "cli/data/show_rows.hpp"
#include "cli/data/token_record.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

/// Looks at every token.
class Survey final : public TokenSink {
 public:
  void append(std::span<const std::int64_t> values) override {
    tokens += static_cast<std::int64_t>(values.size());
    for (const std::int64_t value : values) {
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
  }
  void end_document() override { ++documents; }
  void finish() override {}

  std::int64_t tokens = 0, documents = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), greatest = std::numeric_limits<std::int64_t>::min();
};

/// "uint16 (8, as Megatron numbers types)".
std::string type_text(const std::string& index, sdk::IndexedType type) {
  const int code = sdk::MappedFile(index).at<std::uint8_t>(17);
  const std::string name = sdk::name_of(type);
  if (code < 6) return name + " (" + std::to_string(code) + ")";
  const bool megatron = code == 8 && type == sdk::IndexedType::kU16;
  return name + " (" + std::to_string(code) + ", as " + (megatron ? "Megatron" : "DeepSpeed") + " numbers types)";
}

void add_index(const std::string& path, Json& facts) {
  const bool ends = path.ends_with(".idx") || path.ends_with(".bin");
  const sdk::IndexedRows rows(ends ? path.substr(0, path.size() - 4) : path);
  facts["type"] = type_text(rows.index_path(), rows.type());
  facts["rows"] = rows.rows();
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max(), longest = 0;
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    shortest = std::min(shortest, rows.size(row));
    longest = std::max(longest, rows.size(row));
  }
  if (rows.rows() == 0) return;
  facts["shortest row"] = shortest;
  facts["longest row"] = longest;
}

/// What lies beside an index.
void add_mask_and_rows(const std::string& path, Json& facts) {
  const IndexedDocuments documents(path);
  if (documents.is_packed()) {
    facts["packed rows"] = documents.rows();
    facts["tokens of a packed row"] = documents.row_length();
  }
  if (documents.has_mask()) facts["tokens in the loss"] = documents.counted({0, documents.tokens()});
}

Json facts_of(const DataShowArguments& arguments, const std::string& format) {
  Json facts = Json::object();
  facts["format"] = format;
  if (format == "indexed") add_index(arguments.file, facts);
  Survey survey;
  // An index has the ends of its documents, and need not be one of tokens.
  const auto record = format == "indexed" ? std::nullopt : TokenRecord::read_of(arguments.file, format);
  const std::int64_t end = end_of_documents(arguments.end_token, record);
  read_tokens(arguments.file, format, {.key = arguments.key, .end_token = end, .on_chunk = {}}, survey);
  facts["documents"] = survey.documents;
  facts["tokens"] = survey.tokens;
  if (survey.tokens > 0) {
    facts["smallest token"] = survey.least;
    facts["largest token"] = survey.greatest;
  }
  if (format == "indexed") add_mask_and_rows(arguments.file, facts);
  return facts;
}

/// Throws UsageError for an option that acts on the text of rows alone.
void refuse_options_of_rows(const DataShowArguments& arguments) {
  const auto refuse = [](const std::string& option) {
    throw UsageError(option +
                     ": acts on the text of rows, and without --rows the facts of the file are printed. Give --rows.");
  };
  const DataShowArguments without;
  if (arguments.first != without.first) refuse("--first");
  if (arguments.most_tokens != without.most_tokens) refuse("--tokens");
  if (!arguments.tokenizer.empty()) refuse("--tokenizer");
}

void print_facts(const Json& facts) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : facts.as_object()) {
    rows.push_back({name, value.is_integer() ? grouped(value.as_integer()) : value.as_string()});
  }
  print(table_text(rows));
}

}  // namespace

int data_show(const DataShowArguments& arguments) {
  if (arguments.json && arguments.rows > 0) {
    throw UsageError("--json: prints the facts of a file, and --rows prints its text. Leave one of them out.");
  }
  if (arguments.rows == 0) refuse_options_of_rows(arguments);
  try {
    const std::string format = arguments.from.empty() ? format_of(arguments.file) : arguments.from;
    if (arguments.rows > 0) {
      show_rows(arguments, format);
      return 0;
    }
    const Json facts = facts_of(arguments, format);
    arguments.json ? print(facts.dump() + "\n") : print_facts(facts);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
  return 0;
}

}  // namespace capstan::cli
