#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/text/template/value.hpp"

/// Templates of chats: the part of Jinja that such templates use, as transformers sets it up (trim_blocks,
/// lstrip_blocks, loop controls, {% generation %}). A rendering is bounded in steps, depth and size.
namespace capstan::text_template {

/// A template that cannot be read or rendered. The text has its name and the line, for instance "chat_template:3: ...".
class TemplateError : public RuntimeFault {
 public:
  using RuntimeFault::RuntimeFault;
};

/// The result of a rendering.
struct Rendered {
  std::string text;
  /// Bytes [begin, end) that {% generation %} encloses, in order.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

class Block;

/// A template that was read. Several threads may render it.
class Template {
 public:
  /// `name` stands in front of errors. Throws TemplateError for what is not Jinja, and for what is not supported.
  Template(std::string_view text, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  /// Throws TemplateError: what the template raises by raise_exception(), operations on values of a wrong type, limits.
  Rendered render(Dict variables) const;
  /// Whether {% generation %} occurs.
  bool marks_generated() const;

 private:
  std::string name_;
  std::unique_ptr<const Block> body_;
  bool marks_generated_ = false;
};

}  // namespace capstan::text_template
