#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/data/input_pieces.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// The formats whose files hold rows of named members: "jsonl", "parquet" and "arrow" (IPC files and streams).
const std::vector<std::string>& row_formats();
bool is_row_format(const std::string& format);
/// The format of such a file by its name: .jsonl, .parquet, .arrow or .feather; empty for another name.
std::string row_format_of(const std::string& path);

struct RowOptions {
  std::vector<std::string> columns;                      // parquet and arrow: those of them that a file has are read
  std::function<void(std::uint64_t bytes)> on_progress;  // called with the bytes of the file read since; may throw
  ByteRange range{};                                     // jsonl: of the lines that begin there
  /// Takes the message of a row that cannot be taken, which is left out then. Empty: it is thrown.
  std::function<void(const std::string& why)> on_bad{};
};

/// Hands the rows of a file to `take`, one after another; blank lines of JSON are left out. Memory holds a row, or of a
/// table a part of a row group. A column without a value is null in the row; a member of a struct without a value is
/// left out. Throws RuntimeFault naming the file and the row: unreadable, damaged, a line that is not JSON, a table
/// that has none of `columns`, values that JSON cannot hold. A ConfigError or RuntimeFault of `take` becomes such a
/// RuntimeFault.
void read_json_rows(const std::string& path, const std::string& format, const RowOptions& options,
                    const std::function<void(const Json& row)>& take);

/// The text of a row's member; null where the member is null. Throws RuntimeFault for a row without it, or with another
/// value.
const std::string* text_of_row(const Json& row, const std::string& key);

}  // namespace capstan::cli
