#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/data/data_formats.hpp"
#include "cli/data/loss_mask.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// A file of a tokenizer's tokens, with its record: uint16 where the vocabulary has room there.
class TokenOutput {
 public:
  struct Options {
    std::string out;                  // FILE.bin, or NAME.idx of NAME.idx and NAME.bin
    std::vector<std::string> inputs;  // none of them may be a result
    tokenizer::Id end_token;          // behind each document that does not end with it; kNoId: none
    bool force;                       // results may exist
    bool has_loss_mask = false;       // writes NAME.loss as well; NAME.idx alone
  };

  /// Throws UsageError for a name that cannot be, and RuntimeFault where a file cannot be written.
  TokenOutput(const tokenizer::Tokenizer& tokenizer, Options options);

  /// `counts`: whether the loss counts each token; empty without a mask.
  void append(std::span<const tokenizer::Id> ids, const std::vector<bool>& counts = {});
  void end_document();
  /// Gives the files their names, and writes the record. Throws RuntimeFault where there are no tokens.
  void finish();

  std::int64_t documents() const { return documents_; }
  /// "out.bin: 17 documents, 1,234 tokens of uint16"
  std::string summary() const;

 private:
  const tokenizer::Tokenizer& tokenizer_;
  Options options_;
  sdk::IndexedType type_;
  std::unique_ptr<TokenSink> sink_;
  std::optional<LossMaskWriter> mask_;
  std::vector<std::int64_t> wide_;
  tokenizer::Id last_ = tokenizer::kNoId, largest_ = 0;
  std::int64_t documents_ = 0, tokens_ = 0;
};

}  // namespace capstan::cli
