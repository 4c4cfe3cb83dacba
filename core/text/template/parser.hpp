#pragma once

#include <memory>
#include <string_view>

#include "core/text/template/run.hpp"

namespace capstan::text_template {

struct Parsed {
  std::unique_ptr<const Block> body;
  bool marks_generated = false;
};

/// Reads a template. Throws LexicalError.
Parsed parse_template(std::string_view text);

}  // namespace capstan::text_template
