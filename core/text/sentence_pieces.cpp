#include "core/text/sentence_pieces.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/text/base64.hpp"

namespace capstan {
namespace {

using Kind = SentencePieces::Kind;
using Prefix = SentencePieces::Prefix;

constexpr const char* kSpaceMark = "\u2581";

Json with_type(const char* type) {
  Json made = Json::object();
  made["type"] = type;
  return made;
}

Json sequence_of(const char* member, Json::Array steps) {
  Json made = with_type("Sequence");
  made[member] = Json(std::move(steps));
  return made;
}

Json replacement(const char* kind, const char* pattern, const char* content) {
  Json made = with_type("Replace");
  made["pattern"][kind] = pattern;
  made["content"] = content;
  return made;
}

Json normalizer_of(const SentencePieces& pieces) {
  Json::Array steps;
  if (!pieces.character_map.empty()) {
    Json map = with_type("Precompiled");
    map["precompiled_charsmap"] = encode_base64(pieces.character_map);
    steps.push_back(std::move(map));
  }
  if (pieces.trims_spaces) {
    steps.push_back(replacement("Regex", "^ +| +$", ""));
    steps.push_back(replacement("Regex", " {2,}", " "));
  }
  if (pieces.prefix == Prefix::kSections) {
    Json prepend = with_type("Prepend");
    prepend["prepend"] = kSpaceMark;
    steps.push_back(std::move(prepend));
  }
  if (pieces.prefix == Prefix::kSections || pieces.prefix == Prefix::kNone) {
    steps.push_back(replacement("String", " ", kSpaceMark));
  }
  return steps.empty() ? Json() : sequence_of("normalizers", std::move(steps));
}

/// Whether no piece has a space behind its first character, so that words can be looked at one by one.
bool has_words_alone(const SentencePieces& pieces) {
  return std::all_of(pieces.pieces.begin(), pieces.pieces.end(), [](const SentencePieces::Piece& piece) {
    return piece.kind != Kind::kNormal || piece.text.find(kSpaceMark, 1) == std::string::npos;
  });
}

Json pre_tokenizer_of(const SentencePieces& pieces) {
  const bool splits = !pieces.has_merges && has_words_alone(pieces);
  const bool marks = pieces.prefix == Prefix::kFirst || pieces.prefix == Prefix::kAlways;
  if (!splits && !marks) return {};
  Json made = with_type("Metaspace");
  made["replacement"] = kSpaceMark;
  made["prepend_scheme"] = !marks ? "never" : pieces.prefix == Prefix::kFirst ? "first" : "always";
  made["split"] = splits;
  return made;
}

Json decoder_of(const SentencePieces& pieces) {
  Json::Array steps;
  steps.push_back(replacement("String", kSpaceMark, " "));
  if (pieces.has_bytes) steps.push_back(with_type("ByteFallback"));
  steps.push_back(with_type("Fuse"));
  if (pieces.prefix != Prefix::kNone) {
    Json strip = with_type("Strip");
    strip["content"] = " ";
    strip["start"] = 1;
    strip["stop"] = 0;
    steps.push_back(std::move(strip));
  }
  return sequence_of("decoders", std::move(steps));
}

/// Every way to cut a piece into two pieces, with the piece of the greatest score first, of equal scores the one of the
/// least id, and of one piece the shortest left part.
Json::Array merges_of(const SentencePieces& pieces) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < pieces.pieces.size(); ++id) {
    if (pieces.pieces[id].kind == Kind::kNormal) ids.emplace(pieces.pieces[id].text, id);
  }
  struct Merge {
    std::size_t id, left;  // bytes of the left part
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : ids) {
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
      if (ids.contains(text.substr(0, cut)) && ids.contains(text.substr(cut))) merges.push_back({id, cut});
    }
  }
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    return std::tuple(-pieces.pieces[a.id].score, a.id, a.left) < std::tuple(-pieces.pieces[b.id].score, b.id, b.left);
  });
  Json::Array pairs;
  pairs.reserve(merges.size());
  for (const Merge& merge : merges) {
    const std::string& text = pieces.pieces[merge.id].text;
    pairs.push_back(Json(Json::Array{Json(text.substr(0, merge.left)), Json(text.substr(merge.left))}));
  }
  return pairs;
}

Json model_of(const SentencePieces& pieces) {
  Json model = with_type(pieces.has_merges ? "BPE" : "Unigram");
  model["byte_fallback"] = pieces.has_bytes;
  if (!pieces.has_merges) {
    if (pieces.unknown >= 0) model["unk_id"] = pieces.unknown;
    Json::Array vocabulary;
    for (const SentencePieces::Piece& piece : pieces.pieces) {
      vocabulary.push_back(Json(Json::Array{Json(piece.text), Json(static_cast<double>(piece.score))}));
    }
    model["vocab"] = std::move(vocabulary);
    return model;
  }
  const auto unknown = static_cast<std::size_t>(pieces.unknown);
  if (pieces.unknown >= 0 && unknown < pieces.pieces.size()) model["unk_token"] = pieces.pieces[unknown].text;
  model["fuse_unk"] = true;
  Json::Object vocabulary;
  for (std::size_t id = 0; id < pieces.pieces.size(); ++id) {
    // No text has an unused piece, and none is merged of one.
    const SentencePieces::Piece& piece = pieces.pieces[id];
    if (piece.kind != Kind::kUnused) vocabulary.emplace_back(piece.text, static_cast<std::int64_t>(id));
  }
  model["vocab"] = std::move(vocabulary);
  model["merges"] = merges_of(pieces);
  return model;
}

Json::Array added_tokens_of(const SentencePieces& pieces) {
  Json::Array added;
  for (std::size_t id = 0; id < pieces.pieces.size(); ++id) {
    const SentencePieces::Piece& piece = pieces.pieces[id];
    if (piece.kind != Kind::kControl && piece.kind != Kind::kUserDefined && piece.kind != Kind::kUnknown) continue;
    Json token = Json::object();
    token["id"] = static_cast<std::int64_t>(id);
    token["content"] = piece.text;
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag] = false;
    token["special"] = piece.kind != Kind::kUserDefined;
    added.push_back(std::move(token));
  }
  return added;
}

}  // namespace

std::int64_t SentencePieces::find(std::string_view text) const {
  const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.text == text; });
  return found == pieces.end() ? -1 : found - pieces.begin();
}

Json tokenizer_of_pieces(const SentencePieces& pieces) {
  Json made = Json::object();
  made["version"] = "1.0";
  made["added_tokens"] = added_tokens_of(pieces);
  made["normalizer"] = normalizer_of(pieces);
  made["pre_tokenizer"] = pre_tokenizer_of(pieces);
  made["post_processor"] = nullptr;
  made["decoder"] = decoder_of(pieces);
  made["model"] = model_of(pieces);
  return made;
}

Json tokens_around(std::int64_t before, const std::string& before_text, std::int64_t after,
                   const std::string& after_text) {
  Json made = with_type("TemplateProcessing");
  Json::Array single;
  made["special_tokens"] = Json::object();
  const auto put = [&](std::int64_t id, const std::string& text) {
    if (id < 0) return;
    Json special = Json::object();
    special["SpecialToken"]["id"] = text;
    special["SpecialToken"]["type_id"] = 0;
    single.push_back(std::move(special));
    Json known = Json::object();
    known["id"] = text;
    known["ids"] = Json::Array{Json(id)};
    known["tokens"] = Json::Array{Json(text)};
    made["special_tokens"][text] = std::move(known);
  };
  put(before, before_text);
  Json sequence = Json::object();
  sequence["Sequence"]["id"] = "A";
  sequence["Sequence"]["type_id"] = 0;
  single.push_back(std::move(sequence));
  put(after, after_text);
  made["single"] = std::move(single);
  made["pair"] = Json::array();
  return made;
}

}  // namespace capstan
