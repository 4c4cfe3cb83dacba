#include "cli/data/chat_encoder.hpp"

#include <algorithm>
#include <utility>

#include "cli/data/end_token.hpp"
#include "cli/data/loss_mask.hpp"
#include "core/errors.hpp"

namespace capstan::cli {

using text_template::Rendered;
using tokenizer::Id;
using tokenizer::kNoId;

bool EncodedRow::has_label(std::size_t room) const {
  const std::size_t size = std::min(room, ids.size());
  if (counts.empty()) return size > 1;
  return size > 1 && std::find(counts.begin() + 1, counts.begin() + static_cast<std::ptrdiff_t>(size), true) !=
                         counts.begin() + static_cast<std::ptrdiff_t>(size);
}

ChatEncoder::ChatEncoder(const ModelText& text, Options options)
    : text_(text),
      options_(std::move(options)),
      encoder_(text.tokenizer()),
      end_(options_.end_token.empty() ? kNoId : capstan::cli::end_token(text, options_.end_token)) {}

EncodedRow ChatEncoder::encode(const ChatRow& row) {
  return row.is_conversation() ? encode_conversation(row) : encode_text(row);
}

void ChatEncoder::end(EncodedRow& row, Id token) {
  if (token == kNoId || (!row.ids.empty() && row.ids.back() == token)) return;
  row.ids.push_back(token);
  if (!row.counts.empty()) row.counts.push_back(true);
}

EncodedRow ChatEncoder::encode_conversation(const ChatRow& row) {
  if (!template_) {
    try {
      template_.emplace(text_.chat_template(options_.chat_template));
    } catch (const RuntimeFault& fault) {
      throw UnusableModel(fault.what());
    } catch (const ConfigError& fault) {
      throw UnusableModel(fault.what());
    }
  }
  if (options_.loss == ChatLoss::kCompletion && !row.has_prompt) {
    throw RuntimeFault(
        "has no \"prompt\" and \"completion\", and --loss completion counts completions. Take --loss "
        "assistant.");
  }
  const Rendered rendered = template_->render(row.messages, row.tools);
  refuse_unknown_roles(row, rendered.text);
  EncodedRow made;
  encoder_.encode(rendered.text, made.ids);
  if (options_.loss != ChatLoss::kAll) {
    made.counts = tokens_in_parts(encoder_, rendered.text, counted_parts(row, rendered), made.ids);
  }
  // Without a turn of the assistant a conversation is left out, and no end token is to be learned alone.
  if (options_.loss == ChatLoss::kAll || made.has_label(made.ids.size())) end(made, end_);
  return made;
}

ChatEncoder::Parts ChatEncoder::counted_parts(const ChatRow& row, const Rendered& rendered) const {
  const std::size_t begin = row.has_prompt ? prompt_bytes(row, rendered.text) : 0;
  if (options_.loss == ChatLoss::kCompletion) return {{begin, rendered.text.size()}};
  Parts parts;
  for (const auto& [from, to] : template_->assistant_parts(row.messages, row.tools, rendered)) {
    if (from >= begin) parts.emplace_back(from, to);
  }
  return parts;
}

/// Where the completion begins in the rendered text: behind the prompt for it.
std::size_t ChatEncoder::prompt_bytes(const ChatRow& row, const std::string& rendered) const {
  const Json::Array& all = row.messages.as_array();
  const Json prompt = Json::Array(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(row.prompt));
  const Json* next = all[row.prompt].find("role");
  const bool answers = next != nullptr && *next == Json("assistant");
  const std::string text = template_->render(prompt, row.tools, answers).text;
  if (rendered.starts_with(text)) return text.size();
  throw RuntimeFault(
      "the template renders the prompt otherwise once the completion follows, so that the tokens of the "
      "completion are not known. Use another template, or --loss all.");
}

/// A template that leaves out what it does not know would train on a conversation with holes.
void ChatEncoder::refuse_unknown_roles(const ChatRow& row, const std::string& rendered) {
  const Json::Array& messages = row.messages.as_array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].find("role")->as_string();
    const Json* content = messages[i].find("content");
    if (known_roles_.contains(role) || content == nullptr || !content->is_string() || content->as_string().empty()) {
      continue;
    }
    // Another text in its place must show: a message that is missing may be one that the template writes itself.
    Json::Array others = messages;
    others[i]["content"] = content->as_string() + "~";
    if (template_->render(others, row.tools).text == rendered) {
      throw RuntimeFault("message " + std::to_string(i) + " has the role '" + role +
                         "', and the template renders nothing of it. Use a template that knows the role.");
    }
    known_roles_.insert(role);
  }
}

EncodedRow ChatEncoder::encode_text(const ChatRow& row) {
  if (!row.has_prompt && options_.loss != ChatLoss::kAll) {
    throw RuntimeFault(
        "is a text, in which nothing tells what is to be learned. Take --loss all, or rows with "
        "\"prompt\" and \"completion\".");
  }
  if (!text_end_) text_end_ = capstan::cli::end_token(text_, options_.end_token);
  EncodedRow made;
  if (row.text.empty()) return made;
  tokenizer::Ids ids;
  encoder_.encode(row.text, ids);
  const tokenizer::Ids &before = text_.tokenizer().before(), &after = text_.tokenizer().after();
  if (options_.loss != ChatLoss::kAll) {
    made.counts.resize(before.size());
    const auto counted = tokens_in_parts(encoder_, row.text, {{row.prompt, row.text.size()}}, ids);
    made.counts.insert(made.counts.end(), counted.begin(), counted.end());
    made.counts.resize(made.counts.size() + after.size(), true);
  }
  made.ids = before;
  made.ids.insert(made.ids.end(), ids.begin(), ids.end());
  made.ids.insert(made.ids.end(), after.begin(), after.end());
  end(made, *text_end_);
  return made;
}

}  // namespace capstan::cli
