#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/run/generation.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_model.hpp"
#include "core/text/utf8.hpp"

namespace capstan::cli {
namespace {

constexpr std::int64_t kBytes = 256;

struct Prompt {
  std::vector<std::int64_t> ids;
  bool is_text = false;  // its tokens are bytes
};

/// What may be asked of the model, which is told in its facts.
struct Vocabulary {
  std::int64_t size = 0;
  std::vector<std::int64_t> stop;
};

std::vector<std::int64_t> ids_of(const std::string& option, const std::string& text) {
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

Prompt text_prompt(const std::string& text) {
  Prompt prompt{{}, true};
  for (const char byte : text) prompt.ids.push_back(static_cast<unsigned char>(byte));
  return prompt;
}

Prompt prompt_of_line(const std::string& where, const std::string& line) {
  Json given;
  try {
    given = Json::parse(line);
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
  const Json *text = given.find("text"), *ids = given.find("ids");
  if (text && text->is_string() && !ids) return text_prompt(text->as_string());
  Prompt prompt;
  if (ids && ids->is_array() && !text) {
    for (const Json& id : ids->as_array()) {
      if (!id.is_integer()) throw ConfigError(where + ": ids: must be whole numbers, has " + id.dump() + ".");
      prompt.ids.push_back(id.as_integer());
    }
    return prompt;
  }
  throw ConfigError(where + R"(: must be {"text": "..."} or {"ids": [1, 2]}, got )" + line + ".");
}

std::vector<Prompt> prompts_of(const GenerateArguments& arguments) {
  if (!arguments.ids.empty()) return {Prompt{ids_of("--ids", arguments.ids)}};
  if (arguments.prompts.empty()) return {text_prompt(arguments.prompt)};
  std::ifstream file(arguments.prompts);
  if (!file) throw ConfigError("--prompts: '" + arguments.prompts + "' cannot be read.");
  std::vector<Prompt> prompts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    prompts.push_back(prompt_of_line(arguments.prompts + ":" + std::to_string(number), line));
  }
  if (prompts.empty()) throw ConfigError("--prompts: '" + arguments.prompts + "' has no line with a prompt.");
  return prompts;
}

Vocabulary vocabulary_of(const Model& model) {
  const Json facts = model.describe();
  Vocabulary vocabulary;
  if (const Json* size = facts.find("vocab_size"); size && size->is_integer()) vocabulary.size = size->as_integer();
  const Json* hf = facts.find("hf");
  const Json* config = hf ? hf->find("config") : nullptr;
  const Json* end = config ? config->find("eos_token_id") : nullptr;
  if (end && end->is_integer()) vocabulary.stop.push_back(end->as_integer());
  if (end && end->is_array()) {
    for (const Json& id : end->as_array()) {
      if (id.is_integer()) vocabulary.stop.push_back(id.as_integer());
    }
  }
  return vocabulary;
}

void check_prompts(const std::vector<Prompt>& prompts, const Vocabulary& vocabulary) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1);
    if (prompts[i].ids.empty()) throw ConfigError(where + ": is empty. A model continues at least one token.");
    if (prompts[i].is_text && vocabulary.size != kBytes) {
      throw ConfigError(where + ": is text, whose tokens are bytes, and the model has a vocabulary of " +
                        std::to_string(vocabulary.size) + ". Give the ids of its tokens.");
    }
  }
}

/// Text with U+FFFD in the place of bytes that are not UTF-8.
std::string as_utf8(std::string text) {
  for (std::size_t from = 0;;) {
    const auto bad = first_invalid_utf8(std::string_view(text).substr(from));
    if (!bad) return text;
    text.replace(from + *bad, 1, "\xEF\xBF\xBD");
    from += *bad + 3;
  }
}

std::string text_of(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

std::string answer(const Prompt& prompt, const std::vector<std::int64_t>& tokens, bool as_line) {
  Json::Array ids(tokens.begin(), tokens.end());
  if (as_line) {
    Json line = Json::object();
    line["ids"] = std::move(ids);
    if (prompt.is_text) line["text"] = as_utf8(text_of(tokens));
    return line.dump() + "\n";
  }
  if (prompt.is_text) return text_of(prompt.ids) + text_of(tokens) + "\n";
  std::string text;
  for (const std::int64_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text + "\n";
}

TokenSampling sampling_of(const GenerateArguments& arguments, std::uint64_t seed) {
  return {arguments.temperature, arguments.top_k, arguments.top_p, seed};
}

void check_options(const GenerateArguments& arguments) {
  if (arguments.checkpoint.empty() && arguments.init_from.empty()) {
    throw UsageError("generate: no weights are named. Give --checkpoint DIR[:TAG], or --init-from PATH.");
  }
  if (arguments.prompt.empty() && arguments.ids.empty() && arguments.prompts.empty()) {
    throw UsageError("generate: no prompt is given. Give --prompt TEXT, --ids ID,ID,... or --prompts FILE.");
  }
  if (!std::isfinite(arguments.temperature) || arguments.temperature < 0) {
    throw UsageError("--temperature: must be 0 or more.");
  }
  if (!(arguments.top_p > 0 && arguments.top_p <= 1)) throw UsageError("--top-p: must be above 0 and at most 1.");
  if (arguments.top_k < 0) throw UsageError("--top-k: must be 0, for all tokens, or more.");
  if (arguments.temperature == 0 && (arguments.top_k != 0 || arguments.top_p != 1)) {
    throw UsageError(
        "--top-k and --top-p choose what is drawn from, and --temperature 0 draws nothing. Give --temperature, 1 for "
        "instance.");
  }
}

int generate_loaded(const GenerateArguments& arguments, const std::vector<Prompt>& prompts,
                    const LoadedConfig& loaded) {
  Model model = build_model(loaded);
  const Vocabulary vocabulary = vocabulary_of(model);
  check_prompts(prompts, vocabulary);
  const DecodeFunctions functions = model.decode_functions();
  Engine engine(std::move(model), loaded.config, loaded.plugins, loaded.communicator);
  if (arguments.init_from.empty()) {
    const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
    engine.load_checkpoint(name.dir, tag_named(name.dir, name.tag));
  } else {
    engine.load_weights(arguments.init_from);
  }
  const GenerationLimits limits{arguments.max_new,
                                arguments.stop.empty() ? vocabulary.stop : ids_of("--stop", arguments.stop)};
  const TokenSampling sampling = sampling_of(arguments, loaded.config.run.seed);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto tokens = generate_tokens(engine, functions, prompts[i].ids, limits, sampling, i);
    if (engine.rank() == 0) print(answer(prompts[i], tokens, !arguments.prompts.empty()));
  }
  return 0;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  check_options(arguments);
  const std::vector<Prompt> prompts = prompts_of(arguments);
  LoadedConfig loaded = load_run(source_of(arguments.config), Purpose::kEvaluation);
  if (const auto& attention = loaded.config.attention) {
    throw ConfigError(
        attention->where +
        ": its blocks are those of a whole sequence, and a text is continued token by token. Leave sparse "
        "attention out of the configuration for this command.");
  }
  // Nothing is trained: whatever the checkpoint was trained with, its model continues prompts.
  loaded.config.monitors.clear();
  loaded.config.report.steps_per_print = std::nullopt;
  loaded.config.optimizer.reset();
  loaded.config.scheduler.reset();
  loaded.config.optimizer_offload.reset();
  loaded.config.parameter_groups.clear();
  return run_as_one(loaded, [&] { return generate_loaded(arguments, prompts, loaded); });
}

}  // namespace capstan::cli
