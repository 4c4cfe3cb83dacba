#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/pretrained/model_text.hpp"

namespace capstan::cli {

/// A conversation of a user with a model. It must not outlive the model's text.
class Chat {
 public:
  /// Throws RuntimeFault for a model without a chat template.
  explicit Chat(const ModelText& text) : text_(text), template_(text.chat_template()) {}

  /// The tokens that the model continues with its answer to a message. Throws TemplateError.
  std::vector<std::int64_t> ask(const std::string& message);
  /// Takes the answer into the conversation.
  void answered(const std::string& answer) { add("assistant", answer); }

 private:
  void add(const char* role, const std::string& content);

  const ModelText& text_;
  text_template::ChatTemplate template_;
  Json messages_ = Json::Array();
};

}  // namespace capstan::cli
