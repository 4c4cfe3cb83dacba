#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "capstan/sdk/indexed_file.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/input_pieces.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// What pieces depend on in files: their paths, sizes and times of change. Throws RuntimeFault.
Json identity_of(const std::filesystem::path& file);
Json identity_of(const std::vector<InputFile>& files);

/// The tokens of pieces of inputs, in files of the folder RESULT.parts until the result has them. A piece is there when
/// it is whole, whatever ended the process that wrote it: so a run goes on from the pieces of an earlier one. The lock
/// of the result's file keeps a second process that writes this file from having a store at the same time; results of
/// other formats under the same name must not be made at once, as they have other files and this folder.
class PieceStore {
 public:
  /// `made_of`: all that the tokens depend on. Pieces of something else are removed, and a sentence in the log tells
  /// so. Throws RuntimeFault where there is no such folder to be had.
  PieceStore(const std::filesystem::path& result, const Json& made_of, std::size_t count);

  bool has(std::size_t piece) const;
  std::size_t finished() const;
  /// NAME of the files of a piece.
  std::string name(std::size_t piece) const;
  /// What PieceWriter::finish() was told of a piece.
  Json facts(std::size_t piece) const;
  /// Hands the tokens and ends of documents of a piece to `to`.
  void read(std::size_t piece, TokenSink& to) const;

  /// "12 of 64 pieces are done and wait in corpus.bin.parts: the same command goes on from them"; empty without pieces.
  std::string left() const;
  /// Removes the files of processes that ended before their piece was whole.
  void remove_unfinished() const;
  /// Removes all pieces, and the folder.
  void remove() const;

 private:
  std::filesystem::path folder_;
  std::string prefix_;  // of the names of files: a fingerprint of made_of
  std::size_t count_;
};

/// Writes a piece, under another name until finish(). Throws sdk::Error.
class PieceWriter final : public TokenSink {
 public:
  PieceWriter(const std::string& name, sdk::IndexedType type) : name_(name), rows_(name, type) {}

  void append(std::span<const std::int64_t> tokens) override;
  void end_document() override;
  /// A document that did not end goes on in the next piece.
  void finish() override;

  Json facts = Json::object();

 private:
  std::string name_;
  sdk::IndexedWriter rows_;
  bool open_ = false;
};

}  // namespace capstan::cli
