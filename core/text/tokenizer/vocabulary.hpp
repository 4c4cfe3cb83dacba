#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::tokenizer {

/// The tokens of a model: their texts and ids.
class Vocabulary {
 public:
  /// From {"text": id, ...}. Throws RuntimeFault with the place of an id that is not one, or stands for two texts.
  static Vocabulary of_object(const Field& vocab);
  /// From ["text", ...], whose places are the ids.
  static Vocabulary of_list(std::vector<std::string> texts);

  Vocabulary(Vocabulary&&) = default;

  /// The id of a text, or kNoId.
  Id find(std::string_view text) const;
  /// The text of an id; null where no token has it.
  const std::string* text(Id id) const;
  /// One more than the largest id.
  Id end() const { return static_cast<Id>(texts_.size()); }
  /// Calls use(text, id) for each token, by ids.
  template <class Use>
  void each(Use&& use) const {
    for (Id id = 0; id < end(); ++id) {
      if (const std::string* of = text(id)) use(*of, id);
    }
  }

 private:
  Vocabulary() = default;

  std::vector<std::string> texts_;  // by id
  std::vector<bool> known_;
  std::unordered_map<std::string_view, Id> ids_;
};

/// The ids of "<0x00>" to "<0xFF>", which stand for bytes that have no token else.
class ByteTokens {
 public:
  explicit ByteTokens(const Vocabulary& vocabulary);
  /// Appends the tokens of all bytes, or nothing where a byte has none. Returns whether all have one.
  bool append(std::string_view bytes, Ids& ids) const;

 private:
  Ids ids_;
};

}  // namespace capstan::tokenizer
