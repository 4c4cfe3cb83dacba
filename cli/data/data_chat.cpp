// `capstan data chat`: tokens of conversations, by a model's chat template, and which of them the assistant wrote.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/end_token.hpp"
#include "cli/data/loss_mask.hpp"
#include "cli/data/reading_progress.hpp"
#include "cli/data/token_output.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"
#include "core/text/template/chat_template.hpp"

namespace capstan::cli {
namespace {

using text_template::ChatTemplate;
using text_template::Rendered;
using tokenizer::Encoder;
using tokenizer::Id;
using tokenizer::Ids;
using tokenizer::kNoId;
using tokenizer::Tokenizer;

/// The messages of a row. Throws RuntimeFault where they are not a conversation.
const Json& messages_of(const Json& row, const std::string& key) {
  const Json* messages = row.find(key);
  if (messages == nullptr || !messages->is_array() || messages->size() == 0) {
    throw RuntimeFault("has no messages under \"" + key + "\". Name the member with --key.");
  }
  for (const Json& message : messages->as_array()) {
    const Json* role = message.find("role");
    if (role == nullptr || !role->is_string()) {
      throw RuntimeFault("\"" + key + "\" must be a list of objects with a \"role\", a text.");
    }
  }
  return *messages;
}

/// Writes the tokens of conversations.
class Chats {
 public:
  Chats(const Tokenizer& tokenizer, const ChatTemplate& chat_template, const DataChatArguments& arguments,
        TokenOutput& to)
      : template_(chat_template),
        key_(arguments.key),
        masks_(arguments.loss == "assistant"),
        encoder_(tokenizer),
        to_(to) {}

  void take(const Json& row) {
    const Json& messages = messages_of(row, key_);
    const Json* given = row.find("tools");
    const Json tools = given ? *given : Json();
    const Rendered rendered = template_.render(messages, tools);
    Ids ids;
    encoder_.encode(rendered.text, ids);
    std::vector<bool> counts;
    if (masks_) {
      counts = tokens_in_parts(encoder_, rendered.text, template_.assistant_parts(messages, tools, rendered), ids);
      if (std::find(counts.begin(), counts.end(), true) == counts.end()) {
        ++without_assistant;
        return;
      }
      counted_by_loss += std::count(counts.begin(), counts.end(), true);
    }
    to_.append(ids, counts);
    to_.end_document();
  }

  std::int64_t without_assistant = 0;  // conversations
  std::int64_t counted_by_loss = 0;    // tokens

 private:
  const ChatTemplate& template_;
  std::string key_;
  bool masks_;
  Encoder encoder_;
  TokenOutput& to_;
};

void read_chats(const std::string& path, Chats& chats, ReadingProgress& progress) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
  std::string row;
  for (std::size_t line = 1; std::getline(in, row); ++line) {
    check_interrupts();
    progress.add(row.size() + 1);
    if (row.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = path + ":" + std::to_string(line) + ": ";
    try {
      chats.take(Json::parse(row));
    } catch (const ConfigError& error) {
      throw RuntimeFault(where + error.what());
    } catch (const RuntimeFault& error) {
      throw RuntimeFault(where + error.what());
    }
  }
  if (in.bad()) throw RuntimeFault(path + ": cannot be read: " + std::strerror(errno) + ".");
}

std::string summary(const TokenOutput& output, const Chats& chats, bool masks) {
  std::string text = output.summary();
  if (masks) text += ", " + grouped(chats.counted_by_loss) + " of them the assistant's";
  if (chats.without_assistant > 0) {
    text += "; " + counted(chats.without_assistant, "conversation") + " without a turn of the assistant left out";
  }
  return text + "\n";
}

}  // namespace

int data_chat(const DataChatArguments& arguments) {
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  const ModelText text(arguments.tokenizer);
  const Tokenizer& tokenizer = text.tokenizer();
  const ChatTemplate chat_template = text.chat_template(arguments.chat_template);
  const bool masks = arguments.loss == "assistant";
  const Id end = arguments.end_token.empty() ? kNoId : end_token(text, arguments.end_token);
  return run_interruptible([&] {
    TokenOutput output(
        tokenizer,
        {.out = arguments.out, .inputs = paths, .end_token = end, .force = arguments.force, .has_loss_mask = masks});
    Chats chats(tokenizer, chat_template, arguments, output);
    ReadingProgress progress(paths);
    for (const std::string& path : paths) read_chats(path, chats, progress);
    output.finish();
    print(summary(output, chats, masks));
  });
}

}  // namespace capstan::cli
