#include "token_data.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "capstan/sdk/mapped_file.hpp"
#include "data_files.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace capstan::data {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are read as they stand in the file");

// A mapping costs a page table entry and one of the 65530 that a process may have: small files are copied instead.
constexpr std::uint64_t kCopiedBelow = 64 << 10;

// llm.c: 256 int32, of which three are in use, then the tokens.
constexpr std::uint64_t kHeaderBytes = 1024;
constexpr std::int32_t kMagicUint16 = 20240520, kMagicUint32 = 20240801;

/// One file's tokens.
struct Piece {
  std::filesystem::path path;
  std::shared_ptr<sdk::MappedFile> mapped;  // null when copied
  std::vector<std::byte> copied;
  std::uint64_t skipped = 0;     // bytes of a header
  std::int64_t first_token = 0;  // in the whole data
  std::int64_t tokens = 0;
  std::optional<TokenRecord> record;  // none for bytes

  const std::byte* bytes() const { return (mapped ? mapped->data() : copied.data()) + skipped; }
};

/// The number with which llm.c marks its files; 0 where there is no room for its header.
std::int32_t magic_of(const std::byte* data, std::uint64_t size) {
  std::int32_t magic = 0;
  if (size >= kHeaderBytes) std::memcpy(&magic, data, sizeof magic);
  return magic;
}

/// Bytes of an llm.c header at the front of tokens of `width` bytes, or 0 when the file has none.
std::uint64_t header_bytes(const std::filesystem::path& path, const std::byte* data, std::uint64_t size,
                           std::uint64_t width) {
  const std::int32_t magic = magic_of(data, size);
  if (magic != kMagicUint16 && magic != kMagicUint32) return 0;
  const std::string name = "'" + path.string() + "'";
  if (const std::uint64_t marked = magic == kMagicUint16 ? 2 : 4; marked != width) {
    throw sdk::Error(name + " holds " + std::to_string(8 * marked) + "-bit tokens (llm.c header " +
                     std::to_string(magic) + "), and tokens of " + std::to_string(8 * width) +
                     " bits are read. Set the format to uint" + std::to_string(8 * marked) +
                     ", and name files of one kind.");
  }
  std::int32_t words[3];
  std::memcpy(words, data, sizeof words);
  const auto [unused, version, count] = words;
  if (version != 1) {
    throw sdk::Error(name + " has an llm.c header of version " + std::to_string(version) + "; only version 1 is read.");
  }
  if (count < 0 || static_cast<std::uint64_t>(count) != (size - kHeaderBytes) / width) {
    throw sdk::Error(name + " has " + std::to_string((size - kHeaderBytes) / width) + " tokens, but its header says " +
                     std::to_string(count) + ": it was cut off or joined.");
  }
  return kHeaderBytes;
}

Piece open_piece(const DataFile& file, std::uint64_t width) {
  Piece piece{.path = file.path};
  piece.mapped = std::make_shared<sdk::MappedFile>(file.path.string());
  const std::uint64_t size = piece.mapped->size();
  if (size < kCopiedBelow) {
    piece.copied.assign(piece.mapped->data(), piece.mapped->data() + size);
    piece.mapped = nullptr;
  }
  if (width > 1) {
    if (size % width != 0) {
      throw sdk::Error("'" + file.path.string() + "' has " + std::to_string(size) +
                       " bytes, which is not a whole number of " + std::to_string(8 * width) + "-bit tokens.");
    }
    piece.skipped = header_bytes(file.path, piece.bytes(), size, width);
  }
  piece.tokens = static_cast<std::int64_t>((size - piece.skipped) / width);
  return piece;
}

/// Bytes of a token.
std::uint64_t width_of(const TokenRecord& record) { return record.format == "uint16" ? 2 : 4; }

/// Throws where a file is not the one that its record was written beside.
void check_record(const Piece& piece, std::uint64_t width) {
  if (!piece.record) return;
  const std::string file = "'" + piece.path.string() + "'", record = file.substr(0, file.size() - 1) + ".json'";
  if (width_of(*piece.record) != width) {
    throw sdk::Error(file + " holds tokens of " + piece.record->format + ", as " + record + " says, and tokens of " +
                     std::to_string(8 * width) + " bits are read. Set the format to " + piece.record->format +
                     ", and name files of one kind.");
  }
  piece.record->check_tokens(piece.path, piece.tokens);
}

/// Bytes of a token.
std::uint64_t width_of(const std::vector<DataFile>& files, TokenData::Format format,
                       const TokenData::RecordOf& record_of) {
  if (format == TokenData::Format::kBytes) return 1;
  if (format == TokenData::Format::kUint16) return 2;
  if (format == TokenData::Format::kUint32) return 4;
  const auto index =
      std::find_if(files.begin(), files.end(), [](const DataFile& file) { return file.path.extension() == ".idx"; });
  if (index != files.end()) {
    throw sdk::Error(
        "'" + index->path.string() +
        "' is the index of an indexed file, and goes together with nothing else. Name .idx files alone, or "
        "set the format to indexed for a folder of them, or to bytes.");
  }
  const auto is_bin = [](const DataFile& file) { return file.path.extension() == ".bin"; };
  const auto first_bin = std::find_if(files.begin(), files.end(), is_bin);
  const auto first_text = std::find_if_not(files.begin(), files.end(), is_bin);
  if (first_bin == files.end()) return 1;
  if (first_text != files.end()) {
    throw sdk::Error("'" + first_bin->path.string() + "' (.bin, 16-bit tokens) and '" + first_text->path.string() +
                     "' (text) do not go together. Name the files of one kind, or set the format to bytes or uint16.");
  }
  if (const auto record = record_of ? record_of(first_bin->path) : std::nullopt) return width_of(*record);
  const sdk::MappedFile first(first_bin->path.string());
  return magic_of(first.data(), first.size()) == kMagicUint32 ? 4 : 2;
}

/// XXH3-64 over pieces, in order.
class Digest {
 public:
  Digest() { XXH3_64bits_reset(&state_); }
  void update(const void* bytes, std::size_t count) { XXH3_64bits_update(&state_, bytes, count); }
  std::uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

/// What tells one file's content from another's without reading all of a large one.
void digest_piece(Digest& digest, const DataFile& file, const Piece& piece, std::uint64_t bytes) {
  constexpr std::uint64_t kWhole = 1 << 20, kProbe = 4096, kProbes = 64;
  digest.update(file.name.data(), file.name.size() + 1);
  digest.update(&bytes, sizeof bytes);
  if (bytes <= kWhole) {
    digest.update(piece.bytes(), bytes);
    return;
  }
  for (std::uint64_t i = 0; i < kProbes; ++i) {
    digest.update(piece.bytes() + (bytes - kProbe) / (kProbes - 1) * i, kProbe);
  }
  digest.update(piece.bytes() + bytes - kProbe, kProbe);
}

}  // namespace

struct TokenData::Files {
  std::vector<Piece> pieces;
  std::uint64_t width = 1;                                       // bytes of a token
  std::int64_t tokens = 0, sequence_length = 0, vocabulary = 0;  // 0: not checked
  std::uint64_t fingerprint = 0;

  std::size_t piece_of(std::int64_t token) const {
    const auto after =
        std::upper_bound(pieces.begin(), pieces.end(), token,
                         [](std::int64_t value, const Piece& piece) { return value < piece.first_token; });
    return static_cast<std::size_t>(after - pieces.begin()) - 1;
  }

  void copy(const Piece& piece, std::int64_t from, std::int64_t count, std::int64_t* out) const {
    if (piece.mapped) piece.mapped->check_size();
    if (width == 1) {
      copy_as<std::uint8_t>(piece, from, count, out);
    } else if (width == 2) {
      copy_as<std::uint16_t>(piece, from, count, out);
    } else {
      copy_as<std::uint32_t>(piece, from, count, out);
    }
    if (vocabulary > 0) check(piece, from, count, out);
  }

  template <class Token>
  static void copy_as(const Piece& piece, std::int64_t from, std::int64_t count, std::int64_t* out) {
    const std::byte* source = piece.bytes() + static_cast<std::int64_t>(sizeof(Token)) * from;
    for (std::int64_t i = 0; i < count; ++i) {
      Token token;
      std::memcpy(&token, source + static_cast<std::int64_t>(sizeof token) * i, sizeof token);
      out[i] = token;
    }
  }

  void check(const Piece& piece, std::int64_t from, std::int64_t count, const std::int64_t* out) const {
    const auto* bad = std::find_if(out, out + count, [&](std::int64_t token) { return token >= vocabulary; });
    if (bad == out + count) return;
    throw sdk::Error("'" + piece.path.string() + "', token " + std::to_string(from + (bad - out)) + " is " +
                     std::to_string(*bad) + ", but the model's vocabulary has " + std::to_string(vocabulary) +
                     " entries. Use the tokeniser that the model was made for, or a larger vocabulary.");
  }
};

TokenData::TokenData(const std::vector<std::string>& paths, Format format, std::int64_t sequence_length,
                     const std::function<void(const std::string&)>& said, const RecordOf& record_of)
    : files_(std::make_unique<Files>()) {
  if (sequence_length < 1) {
    throw sdk::Error("the sequence length is " + std::to_string(sequence_length) + "; it must be at least 1.");
  }
  files_->sequence_length = sequence_length;
  const auto found = find_data_files(paths, format == Format::kUint16 || format == Format::kUint32, said);
  files_->width = width_of(found, format, record_of);
  Digest digest;
  // As it has always been, so that checkpoints know their data again: 0 for bytes, 1 for 16 bits.
  const auto kind = static_cast<std::uint8_t>(files_->width / 2);
  digest.update(&kind, sizeof kind);
  for (const auto& file : found) {
    Piece piece = open_piece(file, files_->width);
    if (record_of && files_->width > 1) piece.record = record_of(file.path);
    check_record(piece, files_->width);
    digest_piece(digest, file, piece, static_cast<std::uint64_t>(piece.tokens) * files_->width);
    piece.first_token = files_->tokens;
    files_->tokens += piece.tokens;
    files_->pieces.push_back(std::move(piece));
  }
  files_->fingerprint = digest.value();
  if (samples() < 1) {
    throw sdk::Error("'" + paths.front() + "'" +
                     (paths.size() > 1 ? " and " + std::to_string(paths.size() - 1) + " more hold " : " holds ") +
                     std::to_string(tokens()) + " tokens; a sequence of " + std::to_string(sequence_length) +
                     " needs " + std::to_string(sequence_length) + " + 1. Give more data or a shorter sequence.");
  }
}

TokenData::~TokenData() = default;
TokenData::TokenData(TokenData&&) noexcept = default;

std::int64_t TokenData::samples() const { return (files_->tokens - 1) / files_->sequence_length; }
std::int64_t TokenData::tokens() const { return files_->tokens; }
std::int64_t TokenData::sequence_length() const { return files_->sequence_length; }
bool TokenData::are_bytes() const { return files_->width == 1; }
std::uint64_t TokenData::fingerprint() const { return files_->fingerprint; }
void TokenData::set_vocabulary(std::int64_t size) {
  for (const Piece& piece : files_->pieces) {
    if (piece.record) piece.record->check_vocabulary(piece.path, size);
  }
  files_->vocabulary = size;
}

void TokenData::read(std::int64_t index, std::int64_t* out) const {
  std::int64_t token = index * files_->sequence_length;
  std::int64_t left = files_->sequence_length + 1;
  for (std::size_t i = files_->piece_of(token); left > 0; ++i) {
    const Piece& piece = files_->pieces[i];
    const std::int64_t from = token - piece.first_token;
    const std::int64_t count = std::min(left, piece.tokens - from);
    files_->copy(piece, from, count, out);
    out += count;
    token += count;
    left -= count;
  }
}

}  // namespace capstan::data
