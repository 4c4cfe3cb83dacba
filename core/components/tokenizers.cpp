#include "core/components/tokenizers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/pretrained/model_text.hpp"
#include "core/registry/plugin_call.hpp"

/// A component's tokenizer. Several threads may use one.
struct capstan_tokenizer {
  using Encoder = capstan::tokenizer::Encoder;

  explicit capstan_tokenizer(const std::filesystem::path& path) : text(path) {}

  /// Calls use(encoder) with an encoder that no other thread uses.
  template <class Use>
  void with_encoder(Use&& use) {
    std::unique_ptr<Encoder> encoder;
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        encoder = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (!encoder) encoder = std::make_unique<Encoder>(text.tokenizer());
    use(*encoder);
    // After a failure the encoder is not used again.
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(encoder));
  }

  const capstan::ModelText text;
  std::mutex mutex;
  std::vector<std::unique_ptr<Encoder>> idle;
};

namespace capstan {
namespace {

using tokenizer::DecodeStream;
using tokenizer::Id;
using tokenizer::Ids;
using tokenizer::kNoId;

capstan_status open_tokenizer(void*, capstan_str path, capstan_tokenizer** out, capstan_error* error) {
  return guarded(error, [&] { *out = new capstan_tokenizer(std::string(as_view(path))); });
}

void close_tokenizer(capstan_tokenizer* tokenizer) { delete tokenizer; }

Id end_token_of(const ModelText& text) {
  const auto token = text.end_token();
  return token ? text.tokenizer().find(*token) : kNoId;
}

capstan_status tokenizer_facts(capstan_tokenizer* tokenizer, capstan_tokenizer_facts* out, capstan_error* error) {
  return guarded(error, [&] {
    capstan_tokenizer_facts facts{};
    facts.struct_size = out->struct_size;
    facts.vocabulary = tokenizer->text.tokenizer().vocabulary_size();
    facts.end_token = end_token_of(tokenizer->text);
    std::memcpy(out, &facts, std::min<std::size_t>(out->struct_size, sizeof facts));
  });
}

capstan_status find_token(capstan_tokenizer* tokenizer, capstan_str token, std::int32_t* id, capstan_error* error) {
  return guarded(error, [&] { *id = tokenizer->text.tokenizer().find(as_view(token)); });
}

capstan_status encode_text(capstan_tokenizer* tokenizer, capstan_str text, void* taker,
                           void (*take)(void*, const std::int32_t*, std::size_t), capstan_error* error) {
  return guarded(error, [&] {
    Ids ids;
    tokenizer->with_encoder([&](tokenizer::Encoder& encoder) { encoder.encode(as_view(text), ids); });
    take(taker, ids.data(), ids.size());
  });
}

capstan_status decode_tokens(capstan_tokenizer* tokenizer, const std::int32_t* ids, std::size_t count, int specials,
                             void* taker, void (*take)(void*, capstan_str), capstan_error* error) {
  return guarded(error, [&] {
    DecodeStream stream(tokenizer->text.tokenizer(),
                        specials != 0 ? DecodeStream::Special::kKeep : DecodeStream::Special::kSkip);
    std::string text;
    for (const Id id : std::span(ids, count)) {
      if (tokenizer->text.tokenizer().text(id) == nullptr) {
        throw RuntimeFault(tokenizer->text.tokenizer().file().string() + ": has no token " + std::to_string(id) +
                           ", and " + std::to_string(tokenizer->text.tokenizer().vocabulary_size()) + " ids.");
      }
      text += stream.push(id);
    }
    text += stream.finish();
    take(taker, as_str(text));
  });
}

}  // namespace

void lend_tokenizers(capstan_host& host) {
  host.open_tokenizer = open_tokenizer;
  host.close_tokenizer = close_tokenizer;
  host.tokenizer_facts = tokenizer_facts;
  host.find_token = find_token;
  host.encode_text = encode_text;
  host.decode_tokens = decode_tokens;
}

}  // namespace capstan
