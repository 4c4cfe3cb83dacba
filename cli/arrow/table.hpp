#pragma once

#include <arrow/api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace capstan::cli {

/// A file of columns that is read in parts, from its begin to its end.
struct Table {
  /// The next rows with the columns that were asked for; null behind the last.
  std::function<arrow::Result<std::shared_ptr<arrow::RecordBatch>>()> next;
  /// How many bytes of the file the rows so far take, about.
  std::function<std::int64_t()> position;
};

/// Opens a Parquet file, or an arrow IPC file, also called Feather, or an IPC stream, as the datasets library writes.
/// `columns`: names of which it must have one. Memory holds of Parquet the compressed pages at work and, whatever the
/// size of a row group, about 16 MiB of rows as the file has them, at most 4,096 rows: a text that a dictionary repeats
/// counts once in the file, and takes its room for each row in memory. Of IPC it holds a record batch. Errors are
/// sentences without the file's name.
arrow::Result<Table> open_table(const std::string& path, const std::vector<std::string>& columns);

/// The places of those of `columns` that a table has. Errors: it has none, one twice, or one whose values JSON cannot
/// hold.
arrow::Result<std::vector<int>> places_of(const std::vector<std::string>& columns, const arrow::Schema& schema);

}  // namespace capstan::cli
