#pragma once

#include <string>
#include <vector>

namespace capstan::cli {

/// How files hold tokens.
inline const std::vector<std::string>& token_formats() {
  static const std::vector<std::string> all = {"bytes", "jsonl", "parquet", "arrow", "uint16", "uint32", "indexed"};
  return all;
}

}  // namespace capstan::cli
