#pragma once

#include <string>
#include <vector>

#include "core/text/json.hpp"

namespace capstan::testing {

/// A row of tests/configs/keys.tsv.
struct KeyRow {
  std::string path, type, fallback;
  Json good, bad;
  bool stands_alone;  // a document with this key alone lacks nothing
};
std::vector<KeyRow> key_rows();

/// A document that holds `value` at the path, a free name being "x" and lists having one element.
Json document_with(const std::string& path, const Json& value);

/// The path as such a document has it.
std::string concrete_path(std::string path);

}  // namespace capstan::testing
