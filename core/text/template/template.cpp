#include "core/text/template/template.hpp"

#include <utility>

#include "core/text/template/lexer.hpp"
#include "core/text/template/parser.hpp"
#include "core/text/template/run.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::text_template {

Template::Template(std::string_view text, std::string name) : name_(std::move(name)) {
  if (const auto at = tokenizer::first_invalid_byte(text)) {
    throw TemplateError(name_ + ": is not UTF-8 at byte " + std::to_string(*at) + ".");
  }
  try {
    Parsed parsed = parse_template(text);
    body_ = std::move(parsed.body);
    marks_generated_ = parsed.marks_generated;
  } catch (const LexicalError& error) {
    throw TemplateError(name_ + ":" + std::to_string(error.line) + ": " + error.message);
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

bool Template::marks_generated() const { return marks_generated_; }

Rendered Template::render(Dict variables) const {
  Scope root;
  for (auto& [name, value] : variables) root.set(name.string(), std::move(value));
  Run run(root);
  try {
    body_->render(run);
  } catch (const TemplateError& error) {
    throw TemplateError(name_ + ":" + std::to_string(run.line) + ": " + error.what());
  }
  return std::move(run.result);
}

}  // namespace capstan::text_template
