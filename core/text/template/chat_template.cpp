#include "core/text/template/chat_template.hpp"

#include "core/text/text_file.hpp"

namespace capstan::text_template {
namespace {

namespace fs = std::filesystem;

/// tokenizer_config.json; an empty object where there is none.
Json read_config(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  std::error_code error;
  if (!fs::exists(file, error)) return Json::object();
  return parse_json_text(read_text_file(file), file.string());
}

/// chat_template of tokenizer_config.json: a text, or a list in which "default" is taken.
Template template_of(const Json& config, const std::string& where) {
  const Json* found = config.find("chat_template");
  if (found != nullptr && found->is_array()) {
    for (const Json& one : found->as_array()) {
      const Json *of = one.find("name"), *text = one.find("template");
      if (of != nullptr && *of == Json("default") && text != nullptr) found = text;
    }
  }
  if (found == nullptr || !found->is_string()) {
    throw RuntimeFault("'" + where +
                       "' has no chat template: neither chat_template.jinja nor chat_template in "
                       "tokenizer_config.json. Name a file with --chat-template.");
  }
  return Template(found->as_string(), where + ": chat_template");
}

Template read_template(const fs::path& folder, const fs::path& file) {
  if (!file.empty()) return Template(read_text_file(file), file.string());
  const fs::path beside = folder / "chat_template.jinja";
  std::error_code error;
  if (fs::exists(beside, error)) return Template(read_text_file(beside), beside.string());
  return template_of(read_config(folder), folder.string());
}

/// bos_token and the like of tokenizer_config.json: a text, or an object with its content.
Dict special_tokens(const Json& config) {
  Dict tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Json* token = config.find(name);
    if (token != nullptr && token->is_object()) token = token->find("content");
    if (token != nullptr && token->is_string()) tokens.emplace_back(name, token->as_string());
  }
  return tokens;
}

/// A message whose reasoning is found under each of the names that templates ask for, as transformers 5 has it.
Json with_reasoning(const Json& message) {
  static constexpr const char* kNames[] = {"reasoning_content", "thinking", "reasoning"};
  Json made = message;
  for (const char* name : kNames) {
    const Json* reasoning = message.find(name);
    if (reasoning == nullptr || reasoning->is_null()) continue;
    const Json value = *reasoning;
    made["reasoning_content"] = value;
    if (message.find("thinking") == nullptr) made["thinking"] = value;
    break;
  }
  return made;
}

Json first_messages(const Json& messages, std::size_t count) {
  Json::Array some(messages.as_array().begin(), messages.as_array().begin() + static_cast<std::ptrdiff_t>(count));
  return some;
}

}  // namespace

ChatTemplate::ChatTemplate(const fs::path& folder, const fs::path& file)
    : special_tokens_(special_tokens(read_config(folder))), template_(read_template(folder, file)) {}
ChatTemplate::ChatTemplate(const Json& tokenizer_config, const std::optional<std::string>& text,
                           const std::string& where)
    : special_tokens_(special_tokens(tokenizer_config)),
      template_(text ? Template(*text, where + ": chat_template.jinja") : template_of(tokenizer_config, where)) {}

Rendered ChatTemplate::render(const Json& messages, const Json& tools, bool add_generation_prompt) const {
  List chat;
  for (const Json& message : messages.as_array()) chat.push_back(Value::of(with_reasoning(message)));
  Dict variables = special_tokens_;
  variables.emplace_back("messages", std::move(chat));
  variables.emplace_back("tools", Value::of(tools));
  variables.emplace_back("documents", Value::none());
  variables.emplace_back("add_generation_prompt", add_generation_prompt);
  return template_.render(std::move(variables));
}

std::vector<std::pair<std::size_t, std::size_t>> ChatTemplate::assistant_parts(const Json& messages, const Json& tools,
                                                                               const Rendered& rendered) const {
  if (template_.marks_generated()) return rendered.generated;
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json* role = messages.as_array()[i].find("role");
    if (role == nullptr || !(*role == Json("assistant"))) continue;
    const std::string prompt = render(first_messages(messages, i), tools, true).text;
    const std::string turn = render(first_messages(messages, i + 1), tools).text;
    if (!turn.starts_with(prompt) || !rendered.text.starts_with(turn)) {
      throw TemplateError("the template renders what stands before message " + std::to_string(i) +
                          " of the assistant otherwise once the message follows, so that its tokens are not known. "
                          "Use a template that marks them with {% generation %}, or --loss all.");
    }
    parts.emplace_back(prompt.size(), turn.size());
  }
  return parts;
}

}  // namespace capstan::text_template
