#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/language/language.hpp"
#include "core/schema/schema.hpp"
#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// A key that its section does not have.
struct UnknownKey {
  std::string path, section, key;
  Json value;
  std::string component;                // parameters: the type that has no such one
  std::vector<std::string> parameters;  // parameters: those it has
  std::string meant;                    // a misspelt section: the sibling as which its content was checked
};

/// What "auto" became.
struct ResolvedAuto {
  std::string path;
  Json value;
  bool open = false;   // a value is needed, and only the program that trains can give it
  std::string reason;  // why it is this value; empty: it is the default
};

struct ValidatorOptions {
  std::optional<std::int64_t> hidden_size;    // the hidden size of the model, for "auto" bucket sizes
  bool tuning = false;                        // autotuning: lists are search spaces
  std::vector<std::string> foreign_sections;  // top-level sections that plugins own; left alone
};

/// A document completed and checked key by key.
struct Validated {
  Json effective = Json::object();             // every known key with its value in force
  std::map<std::string, std::string> origins;  // key path -> "file", "default", "derived"
  std::vector<UnknownKey> unknown;             // not reported yet
  std::vector<ResolvedAuto> autos;             // not reported yet
};

/// Checks a document, whose old names are already replaced, against the language.
Validated validate(const Json& document, const ValidatorOptions& options, Problems& problems);

/// Whether "auto" at this path of the tables stands for the default.
bool auto_means_default(std::string_view path);

/// A key that begins with '_', and the key "comment", are how people write comments.
bool is_comment(std::string_view key);

}  // namespace capstan
