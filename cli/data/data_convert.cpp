// `capstan data convert`: tokens from one kind of file to another.

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/json_rows.hpp"
#include "cli/data/piece_run.hpp"
#include "cli/data/piece_store.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// Counts what goes through.
class Counted final : public TokenSink {
 public:
  explicit Counted(TokenSink& to) : to_(to) {}
  void append(std::span<const std::int64_t> tokens) override {
    to_.append(tokens);
    this->tokens += static_cast<std::int64_t>(tokens.size());
  }
  void end_document() override {
    to_.end_document();
    ++documents;
  }
  void finish() override { to_.finish(); }

  std::int64_t tokens = 0, documents = 0;

 private:
  TokenSink& to_;
};

struct Input {
  std::string path, format;
};

/// The widest of the inputs' types; text is of bytes.
sdk::IndexedType widest(const std::vector<Input>& inputs) {
  std::optional<sdk::IndexedType> type;
  for (const Input& input : inputs) {
    const sdk::IndexedType one = type_of(input.path, input.format);
    if (!type || sdk::width_of(one) > sdk::width_of(*type)) type = one;
  }
  return *type;
}

/// A type that holds the tokens of all inputs.
sdk::IndexedType common_type(const std::vector<Input>& inputs) {
  const sdk::IndexedType first = type_of(inputs.front().path, inputs.front().format);
  const bool alike = std::all_of(inputs.begin(), inputs.end(),
                                 [&](const Input& input) { return type_of(input.path, input.format) == first; });
  return alike ? first : sdk::IndexedType::kI64;
}

std::vector<Input> inputs_of(const std::vector<std::string>& paths, const std::string& from) {
  std::vector<Input> inputs;
  for (const std::string& path : paths) {
    try {
      inputs.push_back({path, from.empty() ? format_of(path) : from});
    } catch (const sdk::Error& error) {
      throw RuntimeFault(error.what());
    }
  }
  return inputs;
}

std::vector<InputFile> files_of(const std::vector<Input>& inputs) {
  std::vector<InputFile> files;
  for (const Input& input : inputs) {
    const bool is_table = is_row_format(input.format) && input.format != "jsonl";
    files.push_back({file_of_tokens(input.path, input.format), !is_table});
  }
  return files;
}

/// All that the tokens depend on, beside the files.
Json made_of(const DataConvertArguments& arguments, const std::vector<Input>& inputs) {
  Json json = Json::object();
  json["inputs"] = Json::array();
  for (const Input& input : inputs) {
    Json one = Json::array();
    one.push_back(input.format);
    // Beside the tokens, which are the file that is read.
    if (input.format == "indexed")
      one.push_back(identity_of(std::filesystem::path(input.path).replace_extension(".idx")));
    json["inputs"].push_back(std::move(one));
  }
  json["key"] = arguments.key;
  json["end_token"] = arguments.end_token;
  return json;
}

/// Tells how many bytes the tokens take that go through.
class Measured final : public TokenSink {
 public:
  Measured(TokenSink& to, const PieceRun::OnProgress& on_progress) : to_(to), on_progress_(on_progress) {}
  void append(std::span<const std::int64_t> tokens) override {
    to_.append(tokens);
    on_progress_(tokens.size() * width);
  }
  void end_document() override { to_.end_document(); }
  void finish() override { to_.finish(); }

  std::size_t width = 1;  // of a token in the input

 private:
  TokenSink& to_;
  const PieceRun::OnProgress& on_progress_;
};

/// Hands the tokens of a piece to `to`.
void read_piece(const std::vector<Input>& inputs, TokenOptions options, const InputPiece& piece, TokenSink& to,
                const PieceRun::OnProgress& on_progress) {
  Measured measured(to, on_progress);
  for (const InputPiece::Part& part : piece.parts) {
    const Input& input = inputs[part.file];
    measured.width = sdk::width_of(type_of(input.path, input.format));
    options.range = part.range;
    read_tokens(input.path, input.format, options, measured);
  }
}

}  // namespace

int data_convert(const DataConvertArguments& arguments) {
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  const std::vector<Input> inputs = inputs_of(paths, arguments.from);
  const bool is_stream =
      arguments.to != "indexed" && !fs::is_directory(arguments.out) && output_path(arguments.out).is_stream;
  if (const fs::path out = arguments.out;
      arguments.to == "indexed" && fs::exists(out) && !fs::is_regular_file(out) && !fs::is_directory(out)) {
    throw UsageError("--out: '" + arguments.out +
                     "' is a device or a pipe, and --to indexed writes two files, NAME.bin and NAME.idx. Give a name "
                     "for them.");
  }
  const std::vector<fs::path> results = result_files(arguments.out, arguments.to);
  refuse_inputs_as_results(results, paths);
  const TokenOptions options{.key = arguments.key,
                             .end_token = arguments.end_token,
                             .deepspeed_numbers = arguments.numbering == "deepspeed",
                             .on_chunk = check_interrupts};
  std::string left = is_stream ? "interrupted; what was written has no end" : kNothingWritten;
  const auto convert = [&] {
    const auto sink = make_sink(arguments.out, arguments.to, widest(inputs), options);
    // Now that no other process writes there.
    if (!arguments.force) refuse_to_replace(results);
    for (const Input& input : inputs) {
      if (input.format == "indexed") check_index(input.path);
    }
    Counted counted(*sink);
    ReadingProgress progress(paths);
    const auto read = [&](const InputPiece& piece, TokenSink& to, const PieceRun::OnProgress& on_progress) {
      read_piece(inputs, options, piece, to, on_progress);
      return Json();
    };
    const auto finish = [&] {
      if (counted.tokens == 0) throw RuntimeFault("the inputs hold no token.");
      remove_records(results);
      counted.finish();
    };
    run_in_pieces({.result = arguments.out,
                   .files = files_of(inputs),
                   .made_of = made_of(arguments, inputs),
                   .type = common_type(inputs),
                   .processes = arguments.processes,
                   .in_pieces = !is_stream,
                   .read = read,
                   .found = [](const Json&) {},
                   .finish = finish},
                  counted, progress, left);
    const std::string done = arguments.out + ": " + grouped(counted.documents) + " document" +
                             (counted.documents == 1 ? "" : "s") + ", " + grouped(counted.tokens) + " tokens";
    // Standard output may be what was written.
    is_stream ? log::info(done) : print(done + "\n");
  };
  return run_interruptible(convert, left);
}

}  // namespace capstan::cli
