#include "cli/data/chat_rows.hpp"

#include <map>
#include <utility>

#include "core/errors.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kKnownRows =
    "Known rows have \"messages\", \"conversations\", \"prompt\" and \"completion\", or \"text\"; --key names another "
    "member for messages.";

/// A member; null where the row lacks it, or a table has no value there.
const Json* member(const Json& row, const std::string& name) {
  const Json* found = row.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

/// A message of ShareGPT, {"from", "value"}, as {"role", "content"}.
Json from_share_gpt(const Json& message, const std::string& where) {
  static const std::map<std::string, std::string, std::less<>> kRoles = {
      {"human", "user"},          {"user", "user"},     {"gpt", "assistant"},
      {"assistant", "assistant"}, {"system", "system"}, {"tool", "tool"}};
  const Json *from = member(message, "from"), *value = member(message, "value");
  if (from == nullptr || !from->is_string() || value == nullptr || !value->is_string()) {
    throw RuntimeFault(where + " must be an object with \"from\" and \"value\", texts.");
  }
  const auto role = kRoles.find(from->as_string());
  if (role == kRoles.end()) {
    throw RuntimeFault(where + ": \"from\" is '" + from->as_string() +
                       "'. Known are human, user, gpt, assistant, system and tool.");
  }
  Json made = Json::object();
  made["role"] = role->second;
  made["content"] = *value;
  return made;
}

/// The messages of a list, appended to `messages`.
void add_messages(const Json& list, const std::string& key, Json::Array& messages) {
  if (!list.is_array() || list.size() == 0) throw RuntimeFault("has no messages under " + quoted(key) + ".");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& message = list.as_array()[i];
    const std::string where = quoted(key) + ", message " + std::to_string(i);
    if (!message.is_object()) {
      throw RuntimeFault(quoted(key) + " must be a list of objects with a \"role\", a text.");
    }
    if (member(message, "role") == nullptr && member(message, "from") != nullptr) {
      messages.push_back(from_share_gpt(message, where));
      continue;
    }
    const Json* role = member(message, "role");
    if (role == nullptr || !role->is_string()) {
      throw RuntimeFault(quoted(key) + " must be a list of objects with a \"role\", a text.");
    }
    messages.push_back(message);
  }
}

/// The tools of a row, a list; in some tables it is written as a text.
Json tools_of(const Json& row) {
  const Json* given = member(row, "tools");
  if (given == nullptr) return {};
  Json tools = *given;
  if (given->is_string()) {
    try {
      tools = Json::parse(given->as_string());
    } catch (const ConfigError& error) {
      throw RuntimeFault(std::string("\"tools\": ") + error.what());
    }
  }
  if (!tools.is_array()) throw RuntimeFault("\"tools\" must be a list, or a list that is written as a text.");
  return tools;
}

ChatRow conversation(const Json& row, const std::string& key, const Json& list) {
  ChatRow made;
  Json::Array messages;
  add_messages(list, key, messages);
  made.messages = std::move(messages);
  made.tools = tools_of(row);
  return made;
}

ChatRow with_prompt(const Json& row, const Json& prompt, const Json& completion) {
  ChatRow made;
  made.has_prompt = true;
  if (prompt.is_string() && completion.is_string()) {
    made.text = prompt.as_string() + completion.as_string();
    made.prompt = prompt.as_string().size();
    return made;
  }
  if (!prompt.is_array() || !completion.is_array()) {
    throw RuntimeFault("\"prompt\" and \"completion\" must be two texts, or two lists of messages.");
  }
  Json::Array messages;
  add_messages(prompt, "prompt", messages);
  made.prompt = messages.size();
  add_messages(completion, "completion", messages);
  made.messages = std::move(messages);
  made.tools = tools_of(row);
  return made;
}

/// Throws for rows of other ways to train, which have members of the rows that are known.
void refuse_others(const Json& row) {
  for (const char* name : {"chosen", "rejected"}) {
    if (member(row, name) == nullptr) continue;
    throw RuntimeFault("has " + quoted(name) +
                       ", so that it is a pair of preferences, and this command reads answers to learn. Write the "
                       "chosen answer as {\"prompt\": ..., \"completion\": ...}.");
  }
  for (const char* name : {"label", "completions"}) {
    if (member(row, name) == nullptr || member(row, "messages") != nullptr || member(row, "text") != nullptr) continue;
    throw RuntimeFault("has " + quoted(name) +
                       ", so that it holds judged answers, and this command reads answers to learn. Leave out those "
                       "that are not to be learned, and the member.");
  }
}

}  // namespace

std::vector<std::string> chat_columns(const std::string& key) {
  if (!key.empty()) return {key, "tools"};
  return {"messages", "conversations", "prompt",   "completion", "text",
          "tools",    "chosen",        "rejected", "label",      "completions"};
}

ChatRow chat_row(const Json& row, const std::string& key) {
  if (!row.is_object()) throw RuntimeFault(std::string("is not an object. ") + kKnownRows);
  if (!key.empty()) {
    const Json* list = member(row, key);
    if (list == nullptr) throw RuntimeFault("has no messages under " + quoted(key) + ". Name the member with --key.");
    return conversation(row, key, *list);
  }
  refuse_others(row);
  for (const char* name : {"messages", "conversations"}) {
    if (const Json* list = member(row, name)) return conversation(row, name, *list);
  }
  const Json *prompt = member(row, "prompt"), *completion = member(row, "completion");
  if (prompt && completion) return with_prompt(row, *prompt, *completion);
  if (const Json* text = member(row, "text"); text && text->is_string()) {
    ChatRow made;
    made.text = text->as_string();
    return made;
  }
  std::string found;
  for (const auto& [name, value] : row.as_object()) found += (found.empty() ? "" : ", ") + quoted(name);
  throw RuntimeFault("has nothing to learn: its members are " + (found.empty() ? "none" : found) + ". " + kKnownRows);
}

}  // namespace capstan::cli
