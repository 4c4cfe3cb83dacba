#include "cli/data/text_documents.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

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

/// Cuts bytes into whole characters.
class Characters {
 public:
  Characters(const std::string& path, const TextOptions& options, TextSink& sink)
      : path_(path), options_(options), sink_(sink) {}

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
    if (!whole.empty()) sink_.append(invalid ? tokenizer::replace_invalid(whole) : whole);
    done_ += whole.size();
    held_.erase(0, whole.size());
  }

 private:
  const std::string& path_;
  const TextOptions& options_;
  TextSink& sink_;
  std::string held_;
  std::size_t done_ = 0;
};

void read_text(const std::string& path, const TextOptions& options, TextSink& sink) {
  std::ifstream in = open_text(path);
  Characters characters(path, options, sink);
  std::vector<char> part(kPartBytes);
  while (in.read(part.data(), static_cast<std::streamsize>(part.size())), in.gcount() > 0) {
    const auto count = static_cast<std::size_t>(in.gcount());
    characters.take({part.data(), count}, false);
    options.on_progress(count);
  }
  check_read(in, path);
  characters.take({}, true);
  sink.end_document();
}

void read_lines(const std::string& path, const TextOptions& options, TextSink& sink) {
  std::ifstream in = open_text(path);
  std::string row;
  for (std::size_t line = 1; std::getline(in, row); ++line) {
    options.on_progress(row.size() + 1);
    if (row.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = path + ":" + std::to_string(line) + ": ";
    Json document;
    try {
      document = Json::parse(row);
    } catch (const ConfigError& error) {
      throw RuntimeFault(where + error.what());
    }
    const Json* value = document.find(options.key);
    if (value == nullptr || !value->is_string()) {
      throw RuntimeFault(where + "has no text under \"" + options.key + "\". Name the member with --key.");
    }
    sink.append(value->as_string());
    sink.end_document();
  }
  check_read(in, path);
}

}  // namespace

void read_texts(const std::string& path, const std::string& format, const TextOptions& options, TextSink& sink) {
  format == "jsonl" ? read_lines(path, options, sink) : read_text(path, options, sink);
}

}  // namespace capstan::cli
