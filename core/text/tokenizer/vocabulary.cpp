#include "core/text/tokenizer/vocabulary.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace capstan::tokenizer {

Vocabulary Vocabulary::of_object(const Field& vocab) {
  Vocabulary made;
  Id end = 0;
  for (const auto& [text, id] : vocab.object()) {
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() > Field::kLargestId) vocab.at(text).id();
    end = std::max(end, static_cast<Id>(id.as_integer()) + 1);
  }
  made.texts_.resize(static_cast<std::size_t>(end));
  made.known_.resize(made.texts_.size());
  made.ids_.reserve(vocab.object().size());
  for (const auto& [text, json] : vocab.object()) {
    const auto id = static_cast<Id>(json.as_integer());
    const auto at = static_cast<std::size_t>(id);
    if (made.known_[at]) {
      vocab.fail("id " + std::to_string(id) + " stands for '" + made.texts_[at] + "' and for '" + text + "'.");
    }
    made.known_[at] = true;
    made.texts_[at] = text;
    if (!made.ids_.emplace(made.texts_[at], id).second) vocab.fail("has the token '" + text + "' twice.");
  }
  return made;
}

Vocabulary Vocabulary::of_list(std::vector<std::string> texts) {
  Vocabulary made;
  made.texts_ = std::move(texts);
  made.known_.assign(made.texts_.size(), true);
  made.ids_.reserve(made.texts_.size());
  // Of equal texts the last counts, as in the tokenizers library.
  for (std::size_t i = 0; i < made.texts_.size(); ++i) {
    made.ids_.insert_or_assign(std::string_view(made.texts_[i]), static_cast<Id>(i));
  }
  return made;
}

Id Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNoId : found->second;
}

const std::string* Vocabulary::text(Id id) const {
  const auto at = static_cast<std::size_t>(id);
  return id >= 0 && at < texts_.size() && known_[at] ? &texts_[at] : nullptr;
}

ByteTokens::ByteTokens(const Vocabulary& vocabulary) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    ids_.push_back(vocabulary.find(name));
  }
}

bool ByteTokens::append(std::string_view bytes, Ids& ids) const {
  const auto id_of = [&](char byte) { return ids_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(bytes.begin(), bytes.end(), [&](char byte) { return id_of(byte) == kNoId; })) return false;
  for (const char byte : bytes) ids.push_back(id_of(byte));
  return true;
}

}  // namespace capstan::tokenizer
