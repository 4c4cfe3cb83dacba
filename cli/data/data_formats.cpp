#include "cli/data/data_formats.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "capstan/sdk/token_pieces.hpp"
#include "cli/data/datasets_folder.hpp"
#include "cli/data/json_rows.hpp"
#include "cli/data/token_record.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using sdk::IndexedType;

constexpr std::size_t kChunk = 1 << 16;

// llm.c: 256 int32, of which three are in use, then the tokens.
constexpr std::uint64_t kHeaderBytes = 1024;
constexpr std::int32_t kMagicUint16 = 20240520, kMagicUint32 = 20240801;

std::int32_t magic_of(const sdk::MappedFile& file) {
  return file.size() >= kHeaderBytes ? file.at<std::int32_t>(0) : 0;
}

/// NAME of NAME.idx, NAME.bin or NAME.
std::string stem_of(const std::string& path) {
  const bool ends = path.ends_with(".idx") || path.ends_with(".bin");
  return ends ? path.substr(0, path.size() - 4) : path;
}

/// Puts tokens through a buffer, and ends documents behind the token that ends them.
class Feed {
 public:
  Feed(const TokenOptions& options, TokenSink& sink) : options_(options), sink_(sink) { buffer_.reserve(kChunk); }

  void take(std::int64_t token) {
    buffer_.push_back(token);
    open_ = true;
    if (token == options_.end_token) return end();
    if (buffer_.size() == kChunk) flush();
  }
  void end() {
    flush();
    sink_.end_document();
    open_ = false;
  }
  /// The end of a range of a file: the document goes on in the next one.
  void end_range() { flush(); }
  /// The end of a file ends the document that is open.
  void end_file() {
    if (open_) end();
  }

 private:
  void flush() {
    if (options_.on_chunk) options_.on_chunk();
    if (!buffer_.empty()) sink_.append(buffer_);
    buffer_.clear();
  }

  const TokenOptions& options_;
  TokenSink& sink_;
  std::vector<std::int64_t> buffer_;
  bool open_ = false;
};

template <class T>
void read_flat(const std::string& path, const TokenOptions& options, TokenSink& sink) {
  const sdk::MappedFile file(path);
  std::uint64_t at = 0;
  if (const std::int32_t magic = magic_of(file); sizeof(T) > 1 && (magic == kMagicUint16 || magic == kMagicUint32)) {
    if ((magic == kMagicUint16 ? 2 : 4) != sizeof(T)) {
      throw RuntimeFault(path + ": has llm.c's header of " + (magic == kMagicUint16 ? "16" : "32") +
                         "-bit tokens, and is read as tokens of " + std::to_string(8 * sizeof(T)) + " bits.");
    }
    at = kHeaderBytes;
  }
  if ((file.size() - at) % sizeof(T) != 0) {
    throw RuntimeFault(path + ": has " + std::to_string(file.size()) + " bytes, which is no whole number of " +
                       std::to_string(8 * sizeof(T)) + "-bit tokens.");
  }
  Feed feed(options, sink);
  const std::uint64_t end = std::min(options.range.end, file.size());
  for (at = std::max(at, options.range.begin); at < end; at += sizeof(T)) {
    feed.take(static_cast<std::int64_t>(file.at<T>(at)));
  }
  end == file.size() ? feed.end_file() : feed.end_range();
}

void read_row_bytes(const std::string& path, const std::string& format, const TokenOptions& options, TokenSink& sink) {
  TokenOptions whole = options;
  whole.end_token = -1;
  Feed feed(whole, sink);
  const RowOptions rows{.columns = {options.key},
                        .on_progress =
                            [&](std::uint64_t) {
                              if (options.on_chunk) options.on_chunk();
                            },
                        .range = options.range};
  read_json_rows(path, format, rows, [&](const Json& row) {
    if (const std::string* text = text_of_row(row, options.key)) {
      for (const char byte : *text) feed.take(static_cast<unsigned char>(byte));
    }
    feed.end();
  });
}

/// The first number of [first, last) for which `holds` is true; it is so for all behind it. `last` where none is.
template <class Holds>
std::int64_t first_where(std::int64_t first, std::int64_t last, Holds&& holds) {
  while (first < last) {
    const std::int64_t middle = first + (last - first) / 2;
    if (holds(middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

void read_indexed(const std::string& path, const TokenOptions& options, TokenSink& sink) {
  const sdk::IndexedRows rows(stem_of(path));
  if (options.range.is_whole()) rows.check();
  const auto first_behind = [&](std::uint64_t place) {
    return first_where(0, rows.rows(), [&](std::int64_t row) {
      return static_cast<std::uint64_t>(rows.begin(row)) * sdk::width_of(rows.type()) >= place;
    });
  };
  const std::int64_t first = first_behind(options.range.begin);
  const std::int64_t last = options.range.end == kToEnd ? rows.rows() : first_behind(options.range.end);
  std::vector<std::int64_t> chunk;
  // The next that begins behind a row.
  std::int64_t document =
      first_where(1, rows.documents(), [&](std::int64_t one) { return rows.document(one) > first; });
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t at = 0; at < rows.size(row); at += static_cast<std::int64_t>(kChunk)) {
      if (options.on_chunk) options.on_chunk();
      chunk.resize(static_cast<std::size_t>(std::min<std::int64_t>(kChunk, rows.size(row) - at)));
      rows.read(rows.begin(row) + at, static_cast<std::int64_t>(chunk.size()), chunk.data());
      sink.append(chunk);
    }
    // Rows that lie between two documents are parts of one.
    bool ends = row + 1 == rows.rows();
    for (; document < rows.documents() && rows.document(document) <= row + 1; ++document) ends = true;
    if (ends) sink.end_document();
  }
}

/// The type of tokens in an index. Megatron has no numbers for uint32 and uint64, and no vocabulary is as large.
IndexedType index_type(IndexedType type, bool deepspeed) {
  if (deepspeed) return type;
  if (type == IndexedType::kU32) return IndexedType::kI32;
  return type == IndexedType::kU64 ? IndexedType::kI64 : type;
}

class IndexedSink final : public TokenSink {
 public:
  IndexedSink(const std::string& name, IndexedType type, bool deepspeed)
      : name_(name),
        type_(index_type(type, deepspeed)),
        writer_(name, type_,
                deepspeed ? sdk::IndexedWriter::Numbering::kDeepSpeed : sdk::IndexedWriter::Numbering::kMegatron) {}

  void append(std::span<const std::int64_t> tokens) override {
    for (const std::int64_t token : tokens) {
      // The type for a number and 0 is at most as wide as one that holds it, but for the sign.
      if (token >= 0 && sdk::width_of(sdk::type_for(-1, token)) <= sdk::width_of(type_)) continue;
      if (token >= 0 && is_unsigned() && sdk::width_of(sdk::type_for(0, token)) <= sdk::width_of(type_)) continue;
      if (token < 0 && !is_unsigned() && sdk::width_of(sdk::type_for(token, 0)) <= sdk::width_of(type_)) continue;
      throw RuntimeFault(name_ + ": document " + std::to_string(documents_) + " has token " + std::to_string(token) +
                         ", for which " + sdk::name_of(type_) + " has no room.");
    }
    writer_.append(tokens);
  }
  void end_document() override {
    writer_.end_row();
    writer_.end_document();
    ++documents_;
  }
  void finish() override { writer_.finish(); }

 private:
  bool is_unsigned() const { return *sdk::name_of(type_) == 'u'; }

  std::string name_;
  IndexedType type_;
  sdk::IndexedWriter writer_;
  std::int64_t documents_ = 0;
};

/// Tokens of one width, one after another.
class FlatSink final : public TokenSink {
 public:
  FlatSink(const std::string& path, const std::string& format, std::size_t width, std::int64_t end_token)
      : file_(path), path_(path), format_(format), width_(width), end_token_(end_token) {}

  void append(std::span<const std::int64_t> tokens) override {
    bytes_.clear();
    for (const std::int64_t token : tokens) put(token);
    file_.write(bytes_.data(), bytes_.size());
    if (!tokens.empty()) last_ = tokens.back();
  }
  void end_document() override {
    ++documents_;
    if (end_token_ < 0 || last_ == end_token_) return;
    bytes_.clear();
    put(end_token_);
    file_.write(bytes_.data(), bytes_.size());
    last_ = end_token_;
  }
  void finish() override {
    file_.sync();
    file_.rename();
  }

 private:
  void put(std::int64_t token) {
    if (token < 0 || static_cast<std::uint64_t>(token) >> (8 * width_) != 0) {
      throw RuntimeFault(path_ + ": document " + std::to_string(documents_) + " has token " + std::to_string(token) +
                         ", for which " + format_ + " has no room.");
    }
    // Little endian: the low bytes come first.
    const std::size_t at = bytes_.size();
    bytes_.resize(at + width_);
    std::memcpy(&bytes_[at], &token, width_);
  }

  sdk::detail::AsideFile file_;
  std::string path_, format_;
  std::size_t width_;
  std::int64_t end_token_, last_ = -1, documents_ = 0;
  std::vector<unsigned char> bytes_;
};

std::size_t width_of_format(const std::string& format) { return format == "uint32" ? 4 : format == "uint16" ? 2 : 1; }

/// Whether `data tokenize` writes a file of this name beside tokens, or the datasets library beside arrow files.
bool is_record(const fs::path& path) {
  if (path.filename() == "dataset_info.json") return true;
  const fs::path of = path.parent_path() / path.stem();
  return path.extension() == ".json" && (of.extension() == ".bin" || of.extension() == ".idx") && fs::exists(of);
}

/// Whether a file holds the loss mask or the rows of the index beside it.
bool is_of_an_index(const fs::path& path) {
  if (path.extension() != ".loss" && path.extension() != ".rows") return false;
  return fs::exists(fs::path(path).replace_extension(".idx"));
}

/// Whether a file is of a result that a command has not finished: it is not yet what is read.
bool is_unfinished_result(const fs::path& path) {
  constexpr std::string_view kOfResults[] = {".bin", ".idx", ".sizes", ".loss", ".rows"};
  const std::string of = path.stem().extension().string();
  return path.extension() == ".part" &&
         std::find(std::begin(kOfResults), std::end(kOfResults), of) != std::end(kOfResults);
}

/// Adds the files below a folder. `above`: the folders that lead to it, which a link may lead back to.
void add_files(const fs::path& folder, std::set<fs::path> above, std::vector<std::string>& files) {
  if (!above.insert(fs::canonical(folder)).second) return;
  if (const auto saved = files_of_datasets_folder(folder)) {
    files.insert(files.end(), saved->begin(), saved->end());
    return;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    if (path.filename().string().starts_with('.')) continue;
    if (entry.is_directory()) {
      if (!sdk::is_piece_folder(path)) add_files(path, above, files);
    } else if (entry.is_regular_file() && entry.file_size() > 0) {
      if (path.extension() == ".bin" && fs::exists(stem_of(path.string()) + ".idx")) continue;
      if (is_record(path) || is_of_an_index(path) || is_unfinished_result(path)) continue;
      files.push_back(path.string());
    }
  }
}

}  // namespace

std::vector<std::string> with_files_of_folders(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      all.push_back(path);
      continue;
    }
    std::vector<std::string> files;
    try {
      add_files(path, {}, files);
    } catch (const fs::filesystem_error& fault) {
      throw RuntimeFault("'" + fault.path1().string() + "': " + fault.code().message() + ".");
    }
    if (files.empty()) throw RuntimeFault("folder '" + path + "' holds no file with anything in it.");
    std::sort(files.begin(), files.end());
    all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

std::string format_of(const std::string& path) {
  const bool pair = fs::exists(stem_of(path) + ".idx") && fs::exists(stem_of(path) + ".bin");
  if (path.ends_with(".idx") || (pair && (path.ends_with(".bin") || !fs::exists(path)))) return "indexed";
  if (const std::string rows = row_format_of(path); !rows.empty()) return rows;
  if (!path.ends_with(".bin")) return "bytes";
  if (const std::string format = recorded_format(path); format == "uint16" || format == "uint32") return format;
  return magic_of(sdk::MappedFile(path)) == kMagicUint32 ? "uint32" : "uint16";
}

std::string file_of_tokens(const std::string& path, const std::string& format) {
  return format == "indexed" ? stem_of(path) + ".bin" : path;
}

void check_index(const std::string& path) {
  try {
    sdk::IndexedRows(stem_of(path)).check();
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

sdk::IndexedType type_of(const std::string& path, const std::string& format) {
  if (format == "indexed") return sdk::IndexedRows(stem_of(path)).type();
  if (format == "uint32") return IndexedType::kU32;
  return format == "uint16" ? IndexedType::kU16 : IndexedType::kU8;
}

void read_tokens(const std::string& path, const std::string& format, const TokenOptions& options, TokenSink& sink) {
  try {
    if (format == "indexed") return read_indexed(path, options, sink);
    if (is_row_format(format)) return read_row_bytes(path, format, options, sink);
    if (format == "uint32") return read_flat<std::uint32_t>(path, options, sink);
    if (format == "uint16") return read_flat<std::uint16_t>(path, options, sink);
    read_flat<std::uint8_t>(path, options, sink);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

std::unique_ptr<TokenSink> make_sink(const std::string& out, const std::string& format, IndexedType type,
                                     const TokenOptions& options) {
  try {
    if (format == "indexed") return std::make_unique<IndexedSink>(stem_of(out), type, options.deepspeed_numbers);
    return std::make_unique<FlatSink>(out, format, width_of_format(format), options.end_token);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
}

}  // namespace capstan::cli
