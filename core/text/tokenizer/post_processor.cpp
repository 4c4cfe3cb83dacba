#include "core/text/tokenizer/post_processor.hpp"

namespace capstan::tokenizer {
namespace {

/// Puts the tokens that a processor adds around the tokens that it is given.
void put_around(const SpecialTokens& added, SpecialTokens& tokens) {
  tokens.before.insert(tokens.before.begin(), added.before.begin(), added.before.end());
  tokens.after.insert(tokens.after.end(), added.after.begin(), added.after.end());
}

/// The second part of ["[SEP]", 102].
Id id_of_pair(const Field& pair) { return pair.item(1).id(); }

SpecialTokens tokens_of_template(const Field& processor) {
  SpecialTokens tokens;
  bool seen = false;
  for (const Field& part : processor.at("single").items()) {
    if (const auto sequence = part.find("Sequence")) {
      if (seen || sequence->at("id").text() != "A") part.fail("must be the one text, A, once.");
      seen = true;
      continue;
    }
    const Field name = part.at("SpecialToken").at("id");
    for (const Field& id : processor.at("special_tokens").at(name.text()).at("ids").items()) {
      (seen ? tokens.after : tokens.before).push_back(id.id());
    }
  }
  if (!seen) processor.at("single").fail("has no place for the text, {\"Sequence\": {\"id\": \"A\"}}.");
  return tokens;
}

void add_tokens(const Field& processor, SpecialTokens& tokens) {
  const std::string& type = processor.type(
      "a post-processor", {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"});
  if (type == "Sequence") {
    for (const Field& one : processor.at("processors").items()) add_tokens(one, tokens);
  } else if (type == "TemplateProcessing") {
    put_around(tokens_of_template(processor), tokens);
  } else if (type != "ByteLevel") {  // which moves offsets only
    put_around({{id_of_pair(processor.at("cls"))}, {id_of_pair(processor.at("sep"))}}, tokens);
  }
}

}  // namespace

SpecialTokens special_tokens(const Field& file) {
  SpecialTokens tokens;
  if (const auto processor = file.find("post_processor")) add_tokens(*processor, tokens);
  return tokens;
}

}  // namespace capstan::tokenizer
