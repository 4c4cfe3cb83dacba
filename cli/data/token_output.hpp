#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capstan/sdk/packed_rows.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/loss_mask.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// A file of a tokenizer's tokens, with its record: uint16 where the vocabulary has room there.
class TokenOutput final : public TokenSink {
 public:
  struct Options {
    std::string out;                  // FILE.bin, or NAME.idx of NAME.idx and NAME.bin
    std::vector<std::string> inputs;  // none of them may be a result
    tokenizer::Id end_token;          // behind each document that does not end with it; kNoId: none
    bool force;                       // results may exist
    bool has_loss_mask = false;       // writes NAME.loss as well; NAME.idx alone
    std::int64_t row_length = 0;      // writes NAME.rows of rows of so many tokens as well; NAME.idx alone; 0: none
  };

  /// Throws UsageError for a name that cannot be, and RuntimeFault where a file cannot be written.
  TokenOutput(const tokenizer::Tokenizer& tokenizer, Options options);

  void append(std::span<const std::int64_t> tokens) override;
  /// `counts`: whether the loss counts each token; empty without a mask.
  void append(std::span<const tokenizer::Id> ids, const std::vector<bool>& counts);
  /// Where rows are written, documents get no end token: one that was cut to fit has none.
  void end_document() override;
  /// The last so many documents are a row.
  void end_row(std::int64_t documents) { rows_->append(documents); }
  /// Gives the files their names, and writes the record. Throws RuntimeFault where there are no tokens.
  void finish() override;

  /// Of the tokens in the files.
  sdk::IndexedType type() const { return type_; }

  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }
  /// Tokens that the loss counts, by the mask.
  std::int64_t counted_by_loss() const { return counted_by_loss_; }
  std::int64_t rows() const { return rows_ ? rows_->rows() : 0; }
  /// "out.bin: 17 documents, 1,234 tokens of uint16"
  std::string summary() const;

 private:
  const tokenizer::Tokenizer& tokenizer_;
  Options options_;
  sdk::IndexedType type_;
  std::unique_ptr<TokenSink> sink_;
  std::optional<LossMaskWriter> mask_;
  std::optional<sdk::PackedRowsWriter> rows_;
  std::vector<std::int64_t> wide_;
  std::int64_t last_ = tokenizer::kNoId, largest_ = 0, documents_ = 0, tokens_ = 0, counted_by_loss_ = 0;
};

}  // namespace capstan::cli
