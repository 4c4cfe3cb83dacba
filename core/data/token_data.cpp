#include "core/data/token_data.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/data/data_files.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/xxh3.hpp"

namespace capstan {
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
  std::shared_ptr<MappedFile> mapped;  // null when copied
  std::vector<std::byte> copied;
  std::uint64_t skipped = 0;     // bytes of a header
  std::int64_t first_token = 0;  // in the whole data
  std::int64_t tokens = 0;

  const std::byte* bytes() const { return (mapped ? mapped->data() : copied.data()) + skipped; }
};

/// Bytes of an llm.c header at the front of uint16 tokens, or 0 when the file has none.
std::uint64_t header_bytes(const std::filesystem::path& path, const std::byte* data, std::uint64_t size) {
  std::int32_t words[3];
  if (size < kHeaderBytes) return 0;
  std::memcpy(words, data, sizeof words);
  const auto [magic, version, count] = words;
  if (magic == kMagicUint32) {
    throw RuntimeFault("data: '" + path.string() + "' holds 32-bit tokens (llm.c header " + std::to_string(magic) +
                       "); only 16-bit tokens are read.");
  }
  if (magic != kMagicUint16) return 0;
  if (version != 1) {
    throw RuntimeFault("data: '" + path.string() + "' has an llm.c header of version " + std::to_string(version) +
                       "; only version 1 is read.");
  }
  if (count < 0 || static_cast<std::uint64_t>(count) != (size - kHeaderBytes) / 2) {
    throw RuntimeFault("data: '" + path.string() + "' has " + std::to_string((size - kHeaderBytes) / 2) +
                       " tokens, but its header says " + std::to_string(count) + ": it was cut off or joined.");
  }
  return kHeaderBytes;
}

Piece open_piece(const DataFile& file, bool wide) {
  Piece piece{.path = file.path};
  try {
    piece.mapped = std::make_shared<MappedFile>(file.path);
  } catch (const RuntimeFault& fault) {
    throw RuntimeFault(std::string("data: ") + fault.what());
  }
  const std::uint64_t size = piece.mapped->size();
  if (size < kCopiedBelow) {
    piece.copied.assign(piece.mapped->data(), piece.mapped->data() + size);
    piece.mapped = nullptr;
  }
  if (wide) {
    if (size % 2 != 0) {
      throw RuntimeFault("data: '" + file.path.string() + "' has " + std::to_string(size) +
                         " bytes, which is not a whole number of 16-bit tokens.");
    }
    piece.skipped = header_bytes(file.path, piece.bytes(), size);
  }
  piece.tokens = static_cast<std::int64_t>((size - piece.skipped) / (wide ? 2 : 1));
  return piece;
}

bool is_wide(const std::vector<DataFile>& files, TokenData::Format format) {
  if (format != TokenData::Format::kAuto) return format == TokenData::Format::kUint16;
  const auto is_bin = [](const DataFile& file) { return file.path.extension() == ".bin"; };
  const auto first_bin = std::find_if(files.begin(), files.end(), is_bin);
  const auto first_text = std::find_if_not(files.begin(), files.end(), is_bin);
  if (first_bin != files.end() && first_text != files.end()) {
    throw RuntimeFault(
        "data: '" + first_bin->path.string() + "' (.bin, 16-bit tokens) and '" + first_text->path.string() +
        "' (text) do not go together. Name the files of one kind, or set the format to bytes or uint16.");
  }
  return first_bin != files.end();
}

/// What tells one file's content from another's without reading all of a large one.
void digest_piece(Xxh3& digest, const DataFile& file, const Piece& piece, std::uint64_t bytes) {
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
  bool wide = false;
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
    if (wide) {
      const std::byte* source = piece.bytes() + 2 * from;
      for (std::int64_t i = 0; i < count; ++i) {
        std::uint16_t token;
        std::memcpy(&token, source + 2 * i, sizeof token);
        out[i] = token;
      }
    } else {
      const auto* source = reinterpret_cast<const std::uint8_t*>(piece.bytes()) + from;
      std::copy(source, source + count, out);
    }
    if (vocabulary > 0) check(piece, from, count, out);
  }

  void check(const Piece& piece, std::int64_t from, std::int64_t count, const std::int64_t* out) const {
    const auto* bad = std::find_if(out, out + count, [&](std::int64_t token) { return token >= vocabulary; });
    if (bad == out + count) return;
    throw RuntimeFault("data: '" + piece.path.string() + "', token " + std::to_string(from + (bad - out)) + " is " +
                       std::to_string(*bad) + ", but the model's vocabulary has " + std::to_string(vocabulary) +
                       " entries. Use the tokeniser that the model was made for, or a larger vocabulary.");
  }
};

TokenData::TokenData(const std::vector<std::string>& paths, Format format, std::int64_t sequence_length)
    : files_(std::make_unique<Files>()) {
  if (sequence_length < 1) {
    throw RuntimeFault("data: the sequence length is " + std::to_string(sequence_length) + "; it must be at least 1.");
  }
  files_->sequence_length = sequence_length;
  const auto found = find_data_files(paths, format == Format::kUint16);
  files_->wide = is_wide(found, format);
  Xxh3 digest;
  digest.update(&files_->wide, sizeof files_->wide);
  for (const auto& file : found) {
    Piece piece = open_piece(file, files_->wide);
    digest_piece(digest, file, piece, static_cast<std::uint64_t>(piece.tokens) * (files_->wide ? 2 : 1));
    piece.first_token = files_->tokens;
    files_->tokens += piece.tokens;
    files_->pieces.push_back(std::move(piece));
  }
  files_->fingerprint = digest.digest();
  if (samples() < 1) {
    throw RuntimeFault("data: '" + paths.front() + "'" +
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
std::uint64_t TokenData::fingerprint() const { return files_->fingerprint; }
void TokenData::set_vocabulary(std::int64_t size) { files_->vocabulary = size; }

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

Batch token_batch(const TokenData& data, const BatchOrder& order, std::int64_t first, std::int64_t rows) {
  const std::int64_t length = data.sequence_length();
  at::Tensor inputs = at::empty({rows, length}, at::kLong);
  at::Tensor labels = at::empty({rows, length}, at::kLong);
  std::vector<std::int64_t> sample(static_cast<std::size_t>(length) + 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    data.read(order.sample(first + row), sample.data());
    std::copy_n(sample.begin(), length, inputs.mutable_data_ptr<std::int64_t>() + row * length);
    std::copy_n(sample.begin() + 1, length, labels.mutable_data_ptr<std::int64_t>() + row * length);
  }
  Batch batch;
  batch.tensors.emplace("input_ids", std::move(inputs));
  batch.tensors.emplace("labels", std::move(labels));
  return batch;
}

}  // namespace capstan
