#include "cli/data/json_rows.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "cli/data/table_lines.hpp"
#include "core/errors.hpp"

namespace capstan::cli {
namespace {

/// Calls `take` with the row that a line holds. `where` gives what opens the message of an error.
template <class Where>
void take_line(const std::string& line, Where&& where, const RowOptions& options,
               const std::function<void(const Json&)>& take) {
  const auto refuse = [&](const char* why) {
    if (!options.on_bad) throw RuntimeFault(where() + why);
    options.on_bad(where() + why);
  };
  try {
    take(Json::parse(line));
  } catch (const ConfigError& error) {
    refuse(error.what());
  } catch (const RuntimeFault& error) {
    refuse(error.what());
  }
}

std::ifstream open_lines(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
  return in;
}

/// Puts a file at the first line that begins at `begin` or behind it, and returns the line's place; `end` where none
/// begins before it.
std::uint64_t go_to_line(std::ifstream& in, std::uint64_t begin, std::uint64_t end) {
  if (begin == 0) return 0;
  in.seekg(static_cast<std::streamoff>(begin - 1));
  std::uint64_t place = begin;
  for (std::istreambuf_iterator<char> next(in), none; next != none && place <= end; ++place) {
    if (*next++ == '\n') return place;
  }
  return end;
}

/// How many lines begin before a place.
std::size_t lines_before(const std::string& path, std::uint64_t place) {
  std::ifstream in = open_lines(path);
  std::size_t count = 0;
  std::vector<char> some(256 << 10);
  for (std::uint64_t left = place; left > 0 && in;) {
    in.read(some.data(), static_cast<std::streamsize>(std::min<std::uint64_t>(left, some.size())));
    const auto read = static_cast<std::size_t>(in.gcount());
    count += static_cast<std::size_t>(std::count(some.begin(), some.begin() + in.gcount(), '\n'));
    left -= read;
  }
  return count;
}

void read_lines(const std::string& path, const RowOptions& options, const std::function<void(const Json&)>& take) {
  std::ifstream in = open_lines(path);
  const std::uint64_t begin = go_to_line(in, options.range.begin, options.range.end);
  std::uint64_t place = begin;
  std::string line;
  for (std::size_t number = 1; place < options.range.end && std::getline(in, line); ++number) {
    place += line.size() + 1;
    options.on_progress(line.size() + 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    // Only an error costs the time to count the lines before the range.
    const auto where = [&] { return path + ":" + std::to_string(lines_before(path, begin) + number) + ": "; };
    take_line(line, where, options, take);
  }
  if (in.bad()) throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
}

}  // namespace

const std::vector<std::string>& row_formats() {
  static const std::vector<std::string> all = {"jsonl", "parquet", "arrow"};
  return all;
}

bool is_row_format(const std::string& format) {
  return std::find(row_formats().begin(), row_formats().end(), format) != row_formats().end();
}

std::string row_format_of(const std::string& path) {
  if (path.ends_with(".jsonl")) return "jsonl";
  if (path.ends_with(".parquet")) return "parquet";
  return path.ends_with(".arrow") || path.ends_with(".feather") ? "arrow" : "";
}

void read_json_rows(const std::string& path, const std::string& format, const RowOptions& options,
                    const std::function<void(const Json& row)>& take) {
  if (format == "jsonl") return read_lines(path, options, take);
  std::int64_t number = 0;
  read_table_lines(path, options.columns, options.on_progress, [&](const std::string& line) {
    ++number;
    take_line(
        line, [&] { return path + ": row " + std::to_string(number) + ": "; }, options, take);
  });
}

const std::string* text_of_row(const Json& row, const std::string& key) {
  const Json* value = row.find(key);
  if (value != nullptr && value->is_null()) return nullptr;
  if (value != nullptr && value->is_string()) return &value->as_string();
  throw RuntimeFault("has no text under \"" + key + "\"" +
                     (value == nullptr ? "" : std::string(" but a value of type ") + value->type_name()) +
                     ". Name the member with --key.");
}

}  // namespace capstan::cli
