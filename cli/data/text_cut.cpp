#include "cli/data/text_cut.hpp"

#include <algorithm>
#include <cstddef>

#include "cli/data/text_documents.hpp"
#include "core/text/tokenizer/document_cut.hpp"
#include "core/text/tokenizer/document_encoder.hpp"

namespace capstan::cli {
namespace {

constexpr std::uint64_t kMostSearched = 1 << 20;

}  // namespace

std::optional<TextCut> find_cut(const std::string& path, std::uint64_t nominal, std::uint64_t step,
                                const tokenizer::Tokenizer& tokenizer) {
  constexpr std::size_t kContext = tokenizer::DocumentEncoder::Sizes().context, kCharacter = 4;
  const std::uint64_t begin = nominal - std::min<std::uint64_t>(nominal, kContext + kCharacter);
  const auto searched = static_cast<std::size_t>(std::min(step, kMostSearched));
  const auto first = static_cast<std::size_t>(nominal - begin);
  const std::string text = read_range(path, begin, first + searched + kContext + kCharacter);
  if (first == 0 || text.size() < first + kContext + kCharacter) return std::nullopt;
  const std::size_t last = std::min(first + searched, text.size() - kContext - kCharacter) - 1;
  tokenizer::Encoder encoder(tokenizer);
  tokenizer::DocumentCut cut(encoder, kContext);
  const auto place = cut.first_place(text, first, last);
  if (!place) return std::nullopt;
  const std::size_t context = cut.context_before(text, *place);
  return TextCut{begin + *place, text.substr(context, *place - context)};
}

}  // namespace capstan::cli
