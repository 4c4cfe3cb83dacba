// `capstan data convert`: tokens from one kind of file to another.

#include <filesystem>
#include <optional>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
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

/// The widest of the inputs' types; text is of bytes.
sdk::IndexedType widest(const std::vector<std::pair<std::string, std::string>>& inputs) {
  std::optional<sdk::IndexedType> type;
  for (const auto& [path, format] : inputs) {
    const sdk::IndexedType one = type_of(path, format);
    if (!type || sdk::width_of(one) > sdk::width_of(*type)) type = one;
  }
  return *type;
}

}  // namespace

int data_convert(const DataConvertArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> inputs;
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  for (const std::string& path : paths) {
    try {
      inputs.emplace_back(path, arguments.from.empty() ? format_of(path) : arguments.from);
    } catch (const sdk::Error& error) {
      throw RuntimeFault(error.what());
    }
  }
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
  TokenOptions options{.key = arguments.key,
                       .end_token = arguments.end_token,
                       .deepspeed_numbers = arguments.numbering == "deepspeed",
                       .on_chunk = check_interrupts};
  const auto convert = [&] {
    const auto sink = make_sink(arguments.out, arguments.to, widest(inputs), options);
    // Now that no other process writes there.
    if (!arguments.force) refuse_to_replace(results);
    Counted counted(*sink);
    for (const auto& [path, format] : inputs) read_tokens(path, format, options, counted);
    if (counted.tokens == 0) throw RuntimeFault("the inputs hold no token.");
    remove_records(results);
    counted.finish();
    const std::string done = arguments.out + ": " + grouped(counted.documents) + " document" +
                             (counted.documents == 1 ? "" : "s") + ", " + grouped(counted.tokens) + " tokens";
    // Standard output may be what was written.
    is_stream ? log::info(done) : print(done + "\n");
  };
  return run_interruptible(convert,
                           is_stream ? "interrupted; what was written has no end" : "interrupted; nothing was written");
}

}  // namespace capstan::cli
