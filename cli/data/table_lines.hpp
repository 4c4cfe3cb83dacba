#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace capstan::cli {

/// Hands the rows of a Parquet file, or of an arrow IPC file or stream, to `take` as lines of JSON, with those of
/// `columns` that the table has. The program capstan-arrow reads the file, in a process of its own.
/// Throws RuntimeFault naming the file, and what `on_progress` and `take` throw.
void read_table_lines(const std::string& path, const std::vector<std::string>& columns,
                      const std::function<void(std::uint64_t bytes)>& on_progress,
                      const std::function<void(const std::string& line)>& take);

}  // namespace capstan::cli
