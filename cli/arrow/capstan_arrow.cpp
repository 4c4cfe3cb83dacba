// The program `capstan-arrow FILE COLUMN...`: prints the rows of a Parquet file, or of an arrow IPC file or stream, for
// `capstan data`, a line each:
//
//   {"text":"..."}   a row, with those of the columns that the file has
//   @4096            how many bytes of the file are done, after some rows
//   !has no column   an error, a sentence without the file's name; the last line
//   .                all rows are printed; the last line
//
// A program of its own, because libarrow then shares no process with LibTorch or with Capstan's libraries: a damaged
// file that crashes libarrow ends this process alone, and its memory is bounded apart.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/arrow/json_values.hpp"
#include "cli/arrow/table.hpp"

namespace capstan::cli {
namespace {

using arrow::Status;

constexpr std::size_t kPartBytes = 256 << 10;

/// Writes to standard output, and ends the process where nobody reads there any more.
class Output {
 public:
  std::string text;  // not yet written

  void write() {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) _exit(1);
    text.clear();
  }
};

Status append_row(const arrow::RecordBatch& rows, std::int64_t row, std::string& out) {
  out += '{';
  for (int column = 0; column < rows.num_columns(); ++column) {
    if (column > 0) out += ',';
    append_json_text(rows.column_name(column), out);
    out += ':';
    const Status status = append_json(*rows.column(column), row, out);
    if (!status.ok()) return status.WithMessage("column \"", rows.column_name(column), "\" ", status.message());
  }
  out += "}\n";
  return Status::OK();
}

Status print_rows(const std::string& path, const std::vector<std::string>& columns, Output& output) {
  ARROW_ASSIGN_OR_RAISE(const Table table, open_table(path, columns));
  std::int64_t done = 0;
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::RecordBatch> rows, table.next());
    if (!rows) return Status::OK();
    // Otherwise a damaged file would have offsets and codes that lead out of its buffers.
    ARROW_RETURN_NOT_OK(rows->ValidateFull());
    for (std::int64_t row = 0; row < rows->num_rows(); ++row) {
      const std::size_t begin = output.text.size();
      const Status status = append_row(*rows, row, output.text);
      if (!status.ok()) {
        output.text.resize(begin);
        return status.WithMessage("row ", done + row + 1, ": ", status.message());
      }
      if (output.text.size() >= kPartBytes) output.write();
    }
    done += rows->num_rows();
    output.text += '@' + std::to_string(table.position()) + '\n';
  }
}

/// A message in one line, with a full stop.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  if (!text.ends_with('.')) text += '.';
  return text;
}

int run(int argc, char** argv) {
  Output output;
  std::string error;
  try {
    const Status status = print_rows(argv[1], std::vector<std::string>(argv + 2, argv + argc), output);
    if (!status.ok()) error = status.message();
  } catch (const std::exception& fault) {
    error = fault.what();
  }
  output.text += error.empty() ? ".\n" : '!' + one_line(error) + '\n';
  output.write();
  return error.empty() ? 0 : 1;
}

}  // namespace
}  // namespace capstan::cli

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("capstan-arrow: started by 'capstan data', with FILE COLUMN...\n", stderr);
    return 2;
  }
  return capstan::cli::run(argc, argv);
}
