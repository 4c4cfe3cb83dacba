#pragma once

#include <cstdint>
#include <vector>

#include "core/model/model.hpp"

namespace capstan {

/// Facts of the model that bound and end its texts.
struct Vocabulary {
  std::int64_t size = 0;           // 0: not known
  std::int64_t positions = 0;      // tokens of a sequence, at most; 0: not known
  std::vector<std::int64_t> stop;  // tokens that end a text
};

/// By what the model says of itself.
Vocabulary vocabulary_of(const Model& model);

}  // namespace capstan
