#pragma once

#include <memory>
#include <string>

#include "core/text/tokenizer/field.hpp"

namespace capstan::tokenizer {

/// Rewrites a text before it is split: the section "normalizer" of tokenizer.json. Several threads may use one.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `text` is valid UTF-8 and stays so.
  virtual void apply(std::string& text) const = 0;
};

/// The normalizer of a section. Throws RuntimeFault naming the kind and its place where it is not supported.
std::unique_ptr<Normalizer> make_normalizer(const Field& section);

}  // namespace capstan::tokenizer
