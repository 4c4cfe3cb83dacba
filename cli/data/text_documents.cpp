#include "cli/data/text_documents.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "cli/data/json_rows.hpp"
#include "cli/data/text_cut.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/text/numbers.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::cli {
namespace {

constexpr std::size_t kPartBytes = 256 << 10;

std::ifstream open_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
  return in;
}

void check_read(const std::ifstream& in, const std::string& path) {
  if (in.bad()) throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
}

/// Calls a function of a sink: tokenizers do not know which file they read.
template <class Call>
void name_file(const std::string& path, Call&& call) {
  try {
    call();
  } catch (const RuntimeFault& error) {
    throw RuntimeFault(path + ": " + error.what());
  }
}

/// Cuts bytes into whole characters.
class Characters {
 public:
  /// `begin`: the place of the first byte in the file.
  Characters(const std::string& path, const TextOptions& options, TextSink& sink, std::uint64_t begin)
      : path_(path), options_(options), sink_(sink), done_(begin) {}

  void take(std::string_view bytes, bool last) {
    held_ += bytes;
    const std::size_t unfinished = last ? 0 : tokenizer::unfinished_bytes(held_);
    const std::string_view whole = std::string_view(held_).substr(0, held_.size() - unfinished);
    const auto invalid = tokenizer::first_invalid_byte(whole);
    if (invalid && !options_.replaces_invalid) {
      throw RuntimeFault(path_ + ": byte " + grouped(static_cast<std::int64_t>(done_ + *invalid)) +
                         " is not UTF-8. Convert the file, for instance with 'iconv -f latin1 -t utf8', or write "
                         "U+FFFD in place of such bytes with --replace-invalid.");
    }
    if (!whole.empty()) {
      name_file(path_, [&] { sink_.append(invalid ? tokenizer::replace_invalid(whole) : whole); });
    }
    done_ += whole.size();
    held_.erase(0, whole.size());
  }

 private:
  const std::string& path_;
  const TextOptions& options_;
  TextSink& sink_;
  std::string held_;
  std::uint64_t done_;
};

/// The place at which a range of a text ends: at the cut of the range behind it, or of a later one.
std::uint64_t end_of(const std::string& path, const TextOptions& options) {
  const ByteRange& range = options.range;
  if (range.end == kToEnd) return kToEnd;
  const std::uintmax_t size = std::filesystem::file_size(path);
  for (std::uint64_t nominal = range.end; nominal < size; nominal += range.step) {
    if (const auto cut = find_cut(path, nominal, range.step, *options.tokenizer)) return cut->at;
  }
  return kToEnd;
}

void read_text(const std::string& path, const TextOptions& options, TextSink& sink) {
  std::uint64_t at = 0;
  if (options.range.begin > 0) {
    const auto cut = find_cut(path, options.range.begin, options.range.step, *options.tokenizer);
    if (!cut) return;
    at = cut->at;
    name_file(path, [&] { sink.begin_within(cut->context); });
  }
  const std::uint64_t end = end_of(path, options);
  std::ifstream in = open_text(path);
  if (at > 0) in.seekg(static_cast<std::streamoff>(at));
  Characters characters(path, options, sink, at);
  std::vector<char> part(kPartBytes);
  while (at < end) {
    in.read(part.data(), static_cast<std::streamsize>(std::min<std::uint64_t>(part.size(), end - at)));
    const auto count = static_cast<std::size_t>(in.gcount());
    if (count == 0) break;
    characters.take({part.data(), count}, false);
    options.on_progress(count);
    at += count;
  }
  check_read(in, path);
  characters.take({}, true);
  name_file(path, [&] { end == kToEnd ? sink.end_document() : sink.end_within(); });
}

void read_row_texts(const std::string& path, const std::string& format, const TextOptions& options, TextSink& sink) {
  const RowOptions rows{.columns = {options.key}, .on_progress = options.on_progress, .range = options.range};
  read_json_rows(path, format, rows, [&](const Json& row) {
    if (const std::string* text = text_of_row(row, options.key)) sink.append(*text);
    sink.end_document();
  });
}

}  // namespace

std::string read_range(const std::string& path, std::uint64_t begin, std::size_t count) {
  std::ifstream in = open_text(path);
  std::string text(count, '\0');
  in.seekg(static_cast<std::streamoff>(begin));
  in.read(text.data(), static_cast<std::streamsize>(count));
  check_read(in, path);
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

void read_texts(const std::string& path, const std::string& format, const TextOptions& options, TextSink& sink) {
  format == "text" ? read_text(path, options, sink) : read_row_texts(path, format, options, sink);
}

}  // namespace capstan::cli
