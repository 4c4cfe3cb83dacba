#include "core/text/tokenizer/replacement.hpp"

#include <utility>

namespace capstan::tokenizer {

Pattern::Pattern(const Field& section) {
  const Field pattern = section.at("pattern");
  if (const auto regex = pattern.find("Regex")) {
    regex_.emplace(*regex);
    return;
  }
  const Field literal = pattern.at("String");
  literal_ = literal.text();
  if (literal_.empty()) literal.fail("must not be empty.");
}

void Pattern::find(std::string_view text, std::vector<Range>& matches) const {
  if (regex_) return regex_->find(text, matches);
  for (std::size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    matches.push_back({at, at + literal_.size()});
  }
}

Replacement::Replacement(const Field& section) : pattern_(section), content_(section.at("content").text()) {}

void Replacement::apply(std::string& text) const {
  std::vector<Range> matches;
  pattern_.find(text, matches);
  if (matches.empty()) return;
  std::string out;
  out.reserve(text.size() + matches.size() * content_.size());
  std::size_t at = 0;
  for (const Range& match : matches) {
    out.append(text, at, match.begin - at);
    out += content_;
    at = match.end;
  }
  out.append(text, at);
  text = std::move(out);
}

}  // namespace capstan::tokenizer
