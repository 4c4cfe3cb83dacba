#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/component.hpp"

/// The tokenizer of a model, for components that read text: the one that `capstan data tokenize` has.
///
///   class Lines {
///    public:
///     Lines(const sdk::Host& host, const sdk::Params& params) : tokenizer_(host, params.text("tokenizer")) {}
///     ...
///    private:
///     sdk::Tokenizer tokenizer_;
///   };
///
/// Use it in functions that the engine calls: the constructor, open(), read(). What it throws ends the call with the
/// host's sentence, which names the file.
namespace capstan::sdk {

/// Ids are int32. Several threads may use one.
class Tokenizer {
 public:
  enum class Special { kSkip, kKeep };

  /// `path`: a folder with tokenizer.json, that file, or a GGUF file.
  Tokenizer(const Host& host, std::string_view path) : host_(host.raw()) {
    // A host from before these functions ends its table before them.
    if (host_->struct_size < offsetof(capstan_host, decode_tokens) + sizeof host_->decode_tokens) {
      throw Error("this Capstan lends no tokenizers to plugins. Install a newer one.");
    }
    capstan_tokenizer* opened = nullptr;
    check(host_->open_tokenizer(host_->ctx, to_str(path), &opened, current_error));
    tokenizer_ = {opened, host_->close_tokenizer};
    facts_.struct_size = sizeof facts_;
    check(host_->tokenizer_facts(opened, &facts_, current_error));
  }

  /// One more than the largest id: what a model's vocabulary must have room for.
  std::int32_t vocabulary() const { return facts_.vocabulary; }
  /// The token that stands behind a document, eos_token of tokenizer_config.json; none where no file names one.
  std::optional<std::int32_t> end_token() const { return known(facts_.end_token); }
  /// The id of a token by its text, "<|endoftext|>".
  std::optional<std::int32_t> find(std::string_view token) const {
    std::int32_t id = -1;
    check(host_->find_token(tokenizer_.get(), to_str(token), &id, current_error));
    return known(id);
  }

  /// Appends the tokens of a text of UTF-8 to `ids`. Special tokens that are written in the text are found; none are
  /// added.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const {
    const auto take = [](void* out, const std::int32_t* some, std::size_t count) {
      auto& all = *static_cast<std::vector<std::int32_t>*>(out);
      all.insert(all.end(), some, some + count);
    };
    check(host_->encode_text(tokenizer_.get(), to_str(text), &ids, take, current_error));
  }
  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> ids;
    encode(text, ids);
    return ids;
  }
  /// The text of tokens.
  std::string decode(std::span<const std::int32_t> ids, Special special = Special::kSkip) const {
    std::string text;
    const auto take = [](void* out, capstan_str some) { *static_cast<std::string*>(out) += to_view(some); };
    check(host_->decode_tokens(tokenizer_.get(), ids.data(), ids.size(), special == Special::kKeep ? 1 : 0, &text, take,
                               current_error));
    return text;
  }

 private:
  static std::optional<std::int32_t> known(std::int32_t id) { return id >= 0 ? std::optional(id) : std::nullopt; }

  const capstan_host* host_;
  std::unique_ptr<capstan_tokenizer, void (*)(capstan_tokenizer*)> tokenizer_{nullptr, nullptr};
  capstan_tokenizer_facts facts_{};
};

}  // namespace capstan::sdk
