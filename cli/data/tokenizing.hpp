#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/round_trip.hpp"
#include "cli/data/text_documents.hpp"
#include "core/text/json.hpp"
#include "core/text/tokenizer/document_encoder.hpp"

namespace capstan::cli {

/// Turns texts of documents into tokens.
class Tokenizing final : public TextSink {
 public:
  /// What was found beside the tokens.
  struct Found {
    std::int64_t empty = 0;        // documents without text, which are left out
    std::int64_t different = 0;    // documents whose tokens decode to another text
    std::string first_difference;  // of them

    Found() = default;
    explicit Found(const Json& json);
    Json json() const;
    /// Adds what was found in a later part of the inputs.
    void add(const Found& later);
  };

  Tokenizing(const tokenizer::Tokenizer& tokenizer, const DataTokenizeArguments& arguments, TokenSink& to);

  void append(std::string_view text) override;
  void end_document() override;
  void begin_within(std::string_view context) override;
  void end_within() override;

  Found found() const;

  std::string source;  // the file that is read

 private:
  void take(std::span<const tokenizer::Id> ids);

  std::vector<std::int64_t> before_, after_;
  TokenSink& to_;
  tokenizer::DocumentEncoder encoder_;
  std::optional<RoundTrip> check_;
  std::vector<std::int64_t> wide_;
  bool in_document_ = false;
  std::int64_t empty_ = 0;
};

}  // namespace capstan::cli
