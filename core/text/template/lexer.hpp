#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace capstan::text_template {

/// A word of a template.
struct Token {
  enum class Kind {
    kText,            // between tags; after trimming
    kOutputBegin,     // {{
    kOutputEnd,       // }}
    kStatementBegin,  // {%
    kStatementEnd,    // %}
    kName,
    kString,  // its value
    kInteger,
    kFloat,
    kSymbol,  // an operator or bracket
    kEnd
  };

  Kind kind;
  std::string text;
  int line;

  bool is(std::string_view symbol) const { return kind == Kind::kSymbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
};

/// The words of a template, with kEnd as the last. A newline behind a statement and white space before one that begins
/// a line are left out (trim_blocks, lstrip_blocks), '-' and '+' at tags as in Jinja. Throws LexicalError.
std::vector<Token> tokenize_template(std::string_view text);

struct LexicalError {
  std::string message;
  int line;
};

}  // namespace capstan::text_template
