#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/chat.hpp"
#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/prompts.hpp"
#include "cli/trained_model.hpp"
#include "cli/usage_error.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/run/generation.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_model.hpp"
#include "core/run/vocabulary.hpp"
#include "core/run/weights_text.hpp"

namespace capstan::cli {
namespace {

constexpr int kLargestBatch = 64;  // to which capstan::few_rows_linear makes a row's numbers independent of the others

TokenSampling sampling_of(const GenerateArguments& arguments, std::uint64_t seed) {
  return {arguments.temperature, arguments.top_k, arguments.top_p, seed};
}

void check_options(const GenerateArguments& arguments) {
  if (arguments.prompt.empty() && arguments.ids.empty() && arguments.prompts.empty() && !arguments.chat) {
    throw UsageError("generate: no prompt is given. Give --prompt TEXT, --ids ID,ID,..., --prompts FILE or --chat.");
  }
  if (!std::isfinite(arguments.temperature) || arguments.temperature < 0) {
    throw UsageError("--temperature: must be 0 or more.");
  }
  if (!(arguments.top_p > 0 && arguments.top_p <= 1)) throw UsageError("--top-p: must be above 0 and at most 1.");
  if (arguments.batch > kLargestBatch) {
    throw UsageError("--batch: must be at most " + std::to_string(kLargestBatch) + ".");
  }
  if (arguments.top_k < 0) throw UsageError("--top-k: must be 0, for all tokens, or more.");
  if (arguments.temperature == 0 && (arguments.top_k != 0 || arguments.top_p != 1)) {
    throw UsageError(
        "--top-k and --top-p choose what is drawn from, and --temperature 0 draws nothing. Give --temperature, 1 for "
        "instance.");
  }
}

TrainedWeights weights_of(const GenerateArguments& arguments) { return {arguments.checkpoint, arguments.init_from}; }

/// Continues prompts with one model, and prints what it makes of them.
class Generating {
 public:
  Generating(const GenerateArguments& arguments, const LoadedConfig& loaded, Model model,
             const std::optional<ModelText>& text)
      : arguments_(arguments),
        text_(text ? &*text : nullptr),
        vocabulary_(vocabulary_of(model)),
        engine_(std::move(model), loaded.config, loaded.plugins, loaded.communicator),
        limits_{arguments.max_new, arguments.stop.empty() ? vocabulary_.stop : token_ids("--stop", arguments.stop)},
        sampling_(sampling_of(arguments, loaded.config.run.seed)) {
    take_weights(engine_, weights_of(arguments), loaded);
  }

  void answer(std::vector<Prompt> prompts) {
    make_tokens(prompts, text_, vocabulary_.size);
    check_prompts(prompts, vocabulary_, limits_.most_tokens, "--max-new");
    if (!arguments_.prompts.empty()) return answer_file(prompts);
    for (const Prompt& prompt : prompts) {
      if (!prompt.text) {
        say(ids_text(tokens_behind(prompt.ids)) + "\n");
      } else {
        say(*prompt.text);
        stream(prompt.ids);
      }
    }
  }

  /// Answers one message, or where it is empty those of standard input, until its end.
  void chat(const std::string& message) {
    if (!text_) {
      throw ConfigError("--chat: the model comes without a tokenizer. Name a folder or GGUF file with --tokenizer.");
    }
    Chat chat(*text_);
    end_at(text_->end_token());
    if (!message.empty()) {
      stream(chat.ask(message));
      return;
    }
    if (engine_.world_size() > 1) {
      throw ConfigError("--chat: several processes cannot share standard input. Give --prompt TEXT, or start one.");
    }
    const bool asks = isatty(STDIN_FILENO) == 1;
    for (std::string line; (asks ? say("> ") : void()), std::getline(std::cin, line);) {
      if (!line.empty()) chat.answered(stream(chat.ask(line)));
    }
  }

 private:
  void say(const std::string& text) const {
    if (engine_.rank() == 0) print(text);
  }

  /// Prints an answer on a line for each prompt, some prompts at a time.
  void answer_file(const std::vector<Prompt>& prompts) {
    const auto batch = static_cast<std::size_t>(arguments_.batch);
    for (std::size_t first = 0; first < prompts.size(); first += batch) {
      std::vector<std::vector<std::int64_t>> ids;
      for (std::size_t i = first; i < std::min(first + batch, prompts.size()); ++i) ids.push_back(prompts[i].ids);
      const auto answers = generate_batch(engine_, ids, limits_, sampling_, first);
      for (std::size_t i = 0; i < answers.size(); ++i) say(answer_line(prompts[first + i], answers[i], text_));
    }
  }

  void end_at(const std::optional<std::string>& token) {
    const tokenizer::Id id = token ? text_->tokenizer().find(*token) : tokenizer::kNoId;
    if (arguments_.stop.empty() && id != tokenizer::kNoId) limits_.stop.push_back(id);
  }

  std::vector<std::int64_t> tokens_behind(const std::vector<std::int64_t>& ids,
                                          const std::function<void(std::int64_t)>& on_token = {}) {
    return generate_tokens(engine_, ids, limits_, sampling_, sequence_++, on_token);
  }

  /// Prints the text of new tokens as they come, and the line's end. Returns the text.
  std::string stream(const std::vector<std::int64_t>& ids) {
    std::string whole;
    const auto next = [&](const std::string& piece) {
      whole += piece;
      if (!piece.empty()) say(piece);
    };
    if (text_) {
      tokenizer::DecodeStream decoding(text_->tokenizer());
      tokens_behind(ids, [&](std::int64_t token) { next(decoding.push(static_cast<tokenizer::Id>(token))); });
      next(decoding.finish());
    } else {
      next(text_of_tokens(tokens_behind(ids), nullptr));
    }
    say("\n");
    return whole;
  }

  const GenerateArguments& arguments_;
  const ModelText* text_;  // null: tokens are bytes
  Vocabulary vocabulary_;
  Engine engine_;
  GenerationLimits limits_;
  TokenSampling sampling_;
  std::uint64_t sequence_ = 0;
};

/// The text side of the model, where a prompt is text.
std::optional<ModelText> text_side(const GenerateArguments& arguments, const std::vector<Prompt>& prompts,
                                   const std::string& weights) {
  if (!arguments.tokenizer.empty()) return ModelText(arguments.tokenizer);
  const bool has_text = std::any_of(prompts.begin(), prompts.end(), [](const Prompt& one) { return one.text; });
  if (!arguments.chat && !has_text) return std::nullopt;
  return text_of_weights(arguments.checkpoint, weights);
}

int generate_loaded(const GenerateArguments& arguments, std::vector<Prompt> prompts, const LoadedConfig& loaded) {
  const std::optional<ModelText> text = text_side(arguments, prompts, weights_file(weights_of(arguments), loaded));
  Model model = build_model(loaded);
  model.decode_functions();  // refuses a model that cannot, before its weights are loaded
  Generating generating(arguments, loaded, std::move(model), text);
  if (arguments.chat) {
    generating.chat(arguments.prompt);
  } else {
    generating.answer(std::move(prompts));
  }
  return 0;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  check_options(arguments);
  const std::vector<Prompt> prompts = arguments.chat ? std::vector<Prompt>() : read_prompts(arguments);
  const LoadedConfig loaded = load_to_evaluate(
      arguments.config, weights_of(arguments),
      "generate: no weights are named. Give --checkpoint DIR[:TAG], --init-from PATH or --model hf:FOLDER.");
  if (const auto& attention = loaded.config.attention) {
    throw ConfigError(
        attention->where +
        ": its blocks are those of a whole sequence, and a text is continued token by token. Leave sparse "
        "attention out of the configuration for this command.");
  }
  return run_as_one(loaded, [&] { return generate_loaded(arguments, prompts, loaded); });
}

}  // namespace capstan::cli
