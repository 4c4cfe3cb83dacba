#include "cli/prompts.hpp"

#include <algorithm>

#include "cli/usage_error.hpp"
#include "core/text/json.hpp"
#include "core/text/utf8.hpp"

namespace capstan::cli {

std::vector<std::int64_t> token_ids(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.empty() || word.size() > 18 || word.find_first_not_of("0123456789") != std::string::npos) {
      throw UsageError(option + ": must be token ids with commas between, as 1,450,4996, got '" + text + "'.");
    }
    ids.push_back(std::stoll(word));
    begin = end + 1;
  }
  return ids;
}

std::vector<Prompt> read_prompts(const GenerateArguments& arguments) {
  if (!arguments.ids.empty()) return {Prompt{token_ids("--ids", arguments.ids)}};
  if (arguments.prompts.empty()) return {Prompt{{}, arguments.prompt}};
  return read_prompt_file(arguments.prompts, "--prompts");
}

std::string answer_line(const Prompt& prompt, const std::vector<std::int64_t>& tokens, const ModelText* text) {
  Json line = Json::object();
  line["ids"] = Json::Array(tokens.begin(), tokens.end());
  if (prompt.text) line["text"] = as_utf8(text_of_tokens(tokens, text));
  return line.dump() + "\n";
}

}  // namespace capstan::cli
