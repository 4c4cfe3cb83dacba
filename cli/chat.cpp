#include "cli/chat.hpp"

namespace capstan::cli {

std::vector<std::int64_t> Chat::ask(const std::string& message) {
  add("user", message);
  tokenizer::Ids ids;
  tokenizer::Encoder(text_.tokenizer()).encode(template_.render(messages_, Json(), true).text, ids);
  return {ids.begin(), ids.end()};
}

void Chat::add(const char* role, const std::string& content) {
  Json message = Json::object();
  message["role"] = role;
  message["content"] = content;
  Json::Array all = messages_.as_array();
  all.push_back(message);
  messages_ = all;
}

}  // namespace capstan::cli
