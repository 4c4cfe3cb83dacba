#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// Whether each of a text's tokens begins or lies in one of the parts [begin, end) of the text, in bytes and in order.
/// A token that lies across the border of a part counts as in the part.
std::vector<bool> tokens_in_parts(tokenizer::Encoder& encoder, const std::string& text,
                                  const std::vector<std::pair<std::size_t, std::size_t>>& parts,
                                  const tokenizer::Ids& ids);

/// Writes NAME.loss beside NAME.idx and NAME.bin: a bit a token, 1 where the loss counts it, the first in the lowest
/// bit of the first byte. The file has its name after finish(). Throws sdk::Error.
class LossMaskWriter {
 public:
  explicit LossMaskWriter(const std::string& name) : file_(name + ".loss") {}
  void append(bool counts);
  void finish();

 private:
  sdk::detail::AsideFile file_;
  unsigned byte_ = 0;
  int bits_ = 0;
};

}  // namespace capstan::cli
