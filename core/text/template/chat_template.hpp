#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json.hpp"
#include "core/text/template/template.hpp"

namespace capstan::text_template {

/// How a model's folder renders conversations to text, as transformers' apply_chat_template() does. Several threads may
/// use one.
class ChatTemplate {
 public:
  /// Takes chat_template.jinja of the folder, or chat_template of its tokenizer_config.json: a text, or a list in which
  /// "default" is taken. `file`: a template that is used instead, where not empty. Throws RuntimeFault naming the file
  /// that is missing or damaged, and TemplateError.
  explicit ChatTemplate(const std::filesystem::path& folder, const std::filesystem::path& file = {});
  /// Takes `text` where there is one, or else chat_template of a tokenizer_config.json. `where`: the folder or file of
  /// both, for messages. Throws likewise.
  ChatTemplate(const Json& tokenizer_config, const std::optional<std::string>& text, const std::string& where);

  /// The text of a conversation: a list of {"role", "content", ...}. `tools` may be null. Throws TemplateError.
  Rendered render(const Json& messages, const Json& tools, bool add_generation_prompt = false) const;

  /// The bytes [begin, end) of the rendered conversation that the assistant writes: those of {% generation %}, or else
  /// what each message of the assistant adds to the text with the prompt for it. Throws TemplateError where a message
  /// changes the text before it, so that its place is not known.
  std::vector<std::pair<std::size_t, std::size_t>> assistant_parts(const Json& messages, const Json& tools,
                                                                   const Rendered& rendered) const;

 private:
  Dict special_tokens_;  // "eos_token": "</s>"
  Template template_;
};

}  // namespace capstan::text_template
