#include "csv_file.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "../common/append_file.hpp"

namespace capstan::monitors {
namespace {

constexpr std::string_view kOpening = "step,";
constexpr std::string_view kTextOpening = "{\"step\": ";

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

/// The number that `text` begins with, where `then` follows it.
std::optional<std::int64_t> number_before(std::string_view text, char then) {
  std::int64_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end == text.data() + text.size() || *end != then) return std::nullopt;
  return x;
}

/// Where a row stands on the x axis; nothing for lines that are no rows of ours.
std::optional<std::int64_t> row_x(std::string_view line) { return number_before(line, ','); }

/// Where a line of json_text() stands.
std::optional<std::int64_t> text_x(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\": ", kSamples = ", \"samples\": ";
  const auto samples = line.find(kSamples);
  if (!line.starts_with(kBegin) || samples == std::string_view::npos) return std::nullopt;
  return number_before(line.substr(samples + kSamples.size()), ',');
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) fail_on(file, EIO);
  return text;
}

/// The lines of `text` that do not lie beyond `resumed_at`, without a last one that was cut off when the process was
/// killed.
template <class LineX>
std::string lines_until(std::string_view text, std::optional<std::int64_t> resumed_at, const LineX& x_of) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(at, end + 1 - at);
    const auto x = x_of(line);
    if (!x || !resumed_at || *x <= *resumed_at) kept += line;
    at = end + 1;
  }
  return kept;
}

/// The file is replaced also where nothing is cut: a process of an elastic run that stands still may hold the old one
/// open, and would append to it when it wakes.
void replace(const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path aside = file.string() + ".tmp";
  std::filesystem::remove(aside);
  AppendFile(aside, text);
  std::filesystem::rename(aside, file);
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
  const std::string text = text_of(file);
  if (text.starts_with(kOpening)) replace(file, lines_until(text, resumed_at, row_x));
}

void cut_texts_beyond(const std::filesystem::path& given, std::optional<std::int64_t> resumed_at) {
  const std::filesystem::path file = std::filesystem::canonical(given);
  const std::string text = text_of(file);
  if (!text.starts_with(kTextOpening)) return;
  if (resumed_at == 0) resumed_at = -1;
  replace(file, lines_until(text, resumed_at, text_x));
}

void check_texts(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string opening(kTextOpening.size(), '\0');
  in.read(opening.data(), static_cast<std::streamsize>(opening.size()));
  if (in.gcount() == 0 || opening == kTextOpening) return;
  throw std::runtime_error(
      file.string() +
      ": holds something else than samples of a run. Rename it, or choose another csv_monitor.job_name.");
}

}  // namespace capstan::monitors
