#include "cli/data/token_output.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/data/data_output.hpp"
#include "cli/data/token_record.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

using tokenizer::Id;
using tokenizer::kNoId;

constexpr Id kMostIn16Bits = 65536;

bool is_index(const std::string& out) { return out.ends_with(".idx"); }
std::string name_of_index(const std::string& out) { return out.substr(0, out.size() - 4); }

void check_name(const std::string& out, bool has_loss_mask) {
  if (is_index(out) || (out.ends_with(".bin") && !has_loss_mask)) return;
  throw UsageError("--out: must end in " + std::string(has_loss_mask ? "" : ".bin, for tokens alone, or in ") +
                   ".idx, for documents as Megatron-LM has them; got '" + out + "'.");
}

}  // namespace

TokenOutput::TokenOutput(const tokenizer::Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)) {
  check_name(options_.out, options_.has_loss_mask || options_.row_length > 0);
  const bool indexed = is_index(options_.out), narrow = tokenizer.vocabulary_size() <= kMostIn16Bits;
  type_ = narrow ? sdk::IndexedType::kU16 : indexed ? sdk::IndexedType::kI32 : sdk::IndexedType::kU32;
  std::vector<std::filesystem::path> results = {options_.out};
  if (indexed) results = result_files(name_of_index(options_.out), "indexed");
  refuse_inputs_as_results(results, options_.inputs);
  sink_ = make_sink(options_.out, indexed ? "indexed" : sdk::name_of(type_), type_, {.on_chunk = {}});
  // Now that no other process writes there.
  if (!options_.force) refuse_to_replace(results);
  if (options_.has_loss_mask) mask_.emplace(name_of_index(options_.out));
  if (options_.row_length > 0) rows_.emplace(name_of_index(options_.out), options_.row_length);
}

void TokenOutput::append(std::span<const std::int64_t> tokens) {
  if (tokens.empty()) return;
  largest_ = std::max(largest_, *std::max_element(tokens.begin(), tokens.end()));
  last_ = tokens.back();
  tokens_ += std::ssize(tokens);
  sink_->append(tokens);
}

void TokenOutput::append(std::span<const Id> ids, const std::vector<bool>& counts) {
  wide_.assign(ids.begin(), ids.end());
  append(wide_);
  for (const bool count : counts) mask_->append(count);
  counted_by_loss_ += std::count(counts.begin(), counts.end(), true);
}

void TokenOutput::end_document() {
  const std::int64_t end = options_.end_token;
  if (end != kNoId && last_ != end && !rows_) {
    append({&end, 1});
    if (mask_) mask_->append(true);
  }
  sink_->end_document();
  last_ = kNoId;
  ++documents_;
}

void TokenOutput::finish() {
  if (tokens_ == 0) throw RuntimeFault("the inputs hold no text.");
  // A record or a mask of older data must never stand beside new tokens.
  if (is_index(options_.out)) std::filesystem::remove(options_.out);
  remove_records({options_.out});
  if (mask_) mask_->finish();
  if (rows_) rows_->finish();
  sink_->finish();
  TokenRecord{.format = sdk::name_of(type_),
              .documents = documents_,
              .tokens = tokens_,
              .largest_token = largest_,
              .vocabulary_size = tokenizer_.vocabulary_size(),
              .end_token = options_.end_token,
              .rows = rows(),
              .row_length = options_.row_length,
              .tokenizer = tokenizer_.file()}
      .write(options_.out);
}

std::string TokenOutput::summary() const {
  return options_.out + ": " + counted(documents_, "document") + ", " + counted(tokens_, "token") + " of " +
         sdk::name_of(type_);
}

}  // namespace capstan::cli
