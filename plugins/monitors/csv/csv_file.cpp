#include "csv_file.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include "../common/append_file.hpp"

namespace capstan::monitors {
namespace {

constexpr std::string_view kOpening = "step,";

/// repr(float) of Python: the shortest digits; an exponent below 1e-4 and from 1e16 on.
std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = scientific.find('e');
  int exponent = 0;
  std::from_chars(scientific.data() + e + (scientific[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string text(buffer, fixed_end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

/// Where a row stands on the x axis; nothing for lines that are no rows of ours.
std::optional<std::int64_t> row_x(std::string_view line) {
  std::int64_t x = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), x);
  if (error != std::errc() || end == line.data() + line.size() || *end != ',') return std::nullopt;
  return x;
}

}  // namespace

std::string csv_file_name(std::string_view tag) {
  std::string name(tag);
  for (char& c : name) {
    if (c == '/' || c == ' ' || c == '\0') c = '_';
  }
  return name + ".csv";
}

std::string csv_header(std::string_view tag) {
  const std::string_view name = tag.substr(tag.rfind('/') + 1);
  std::string cell;
  for (const char c : name) cell += c == '"' ? "\"\"" : std::string(1, c);
  if (name.find_first_of("\",\r\n") != std::string_view::npos) cell = "\"" + cell + "\"";
  return std::string(kOpening) + cell + "\r\n";
}

std::string csv_row(std::int64_t x, double value) { return std::to_string(x) + "," + python_repr(value) + "\r\n"; }

void cut_rows_beyond(const std::filesystem::path& given, std::optional<std::int64_t> resumed_at) {
  // Of a link the target is replaced.
  const std::filesystem::path file = std::filesystem::canonical(given);
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) fail_on(file, EIO);
  if (!text.starts_with(kOpening)) return;
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // cut off when the process was killed
    const std::string_view line(text.data() + at, end + 1 - at);
    const auto x = row_x(line);
    if (!x || !resumed_at || *x <= *resumed_at) kept += line;
    at = end + 1;
  }
  // The file is replaced also where nothing is cut: a process of an elastic run that stands still may hold the old one
  // open, and would append to it when it wakes.
  const std::filesystem::path aside = file.string() + ".tmp";
  std::filesystem::remove(aside);
  AppendFile(aside, kept);
  std::filesystem::rename(aside, file);
}

}  // namespace capstan::monitors
