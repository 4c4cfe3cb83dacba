#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace capstan::cli {

/// How tokens were made, as DATA.json beside the file DATA says: {"format": "uint16", "documents": 2, "tokens": 10,
/// "largest_token": 9, "vocabulary_size": 256, "end_token": 0, "tokenizer": {"file": "...", "sha256": "..."}}.
/// Documents that share rows: "rows": 1 and "row_length": 2048 as well.
struct TokenRecord {
  std::string format;  // "uint16", "uint32", "int32"
  std::int64_t documents = 0, tokens = 0, largest_token = 0, vocabulary_size = 0;
  std::int64_t end_token = -1;            // -1: none
  std::int64_t rows = 0, row_length = 0;  // of documents that share rows; 0: each is by itself
  std::filesystem::path tokenizer;
  std::string tokenizer_sha256;  // of a record that was read

  /// The record of a file; nothing where it has none. Throws RuntimeFault for one that is not such a record.
  static std::optional<TokenRecord> read(const std::filesystem::path& of);
  /// The record of tokens in a format; nothing for text and rows, beside which a file of this name is something else.
  /// `file` of "indexed": NAME, NAME.idx or NAME.bin. Throws RuntimeFault as read() does.
  static std::optional<TokenRecord> read_of(const std::string& file, const std::string& format);
  /// Whether the tokenizer's file is there, with the bytes that made the tokens.
  bool has_same_tokenizer() const;
  /// Writes the record of a file. Throws RuntimeFault.
  void write(const std::filesystem::path& of) const;
};

/// The token that ends documents: `given`, or where it is negative the one that the record names; -1: none.
std::int64_t end_of_documents(std::int64_t given, const std::optional<TokenRecord>& record);

/// The place of a file's record.
std::filesystem::path record_file(const std::filesystem::path& of);

/// The format that a file's record names; empty where it has no record. Throws RuntimeFault for a record that is not
/// JSON.
std::string recorded_format(const std::filesystem::path& of);

}  // namespace capstan::cli
