#include "core/run/sample_texts.hpp"

#include "core/errors.hpp"
#include "core/run/weights_text.hpp"
#include "core/text/utf8.hpp"

namespace capstan {
namespace {

constexpr const char *kEvery = "capstan.run.sample_every", *kPrompts = "capstan.run.sample_prompts",
                     *kFile = "capstan.run.sample_prompts_file", *kTokenizer = "capstan.run.sample_tokenizer";

/// The section, where the model can do what it asks for.
const SampleConfig& checked(const Config& config, const Model& model) {
  try {
    model.decode_functions();
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(kEvery) + ": " + error.what());
  }
  if (const auto& attention = config.attention) {
    throw ConfigError(
        std::string(kEvery) + ": " + attention->where +
        " sets blocks of a whole sequence, and a text is continued token by token. Leave one of them out.");
  }
  return config.run.sample;
}

std::vector<Prompt> prompts_of(const SampleConfig& config) {
  std::vector<Prompt> prompts;
  for (const std::string& text : config.prompts) prompts.push_back({{}, text});
  if (!config.prompts_file.empty()) {
    for (Prompt& prompt : read_prompt_file(config.prompts_file, kFile)) prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    throw ConfigError(std::string(kEvery) + ": there is no prompt to continue. Give " + kPrompts +
                      " (--sample-prompts TEXT), or a file with " + kFile + ".");
  }
  return prompts;
}

std::optional<ModelText> text_side(const SampleConfig& config, const WeightsOfRun& from) {
  if (!config.tokenizer.empty()) return ModelText(config.tokenizer);
  if (!from.checkpoint.empty()) {
    if (std::optional<ModelText> text = text_of_weights(from.checkpoint, "")) return text;
  }
  return from.weights.empty() ? std::nullopt : text_of_weights("", from.weights);
}

/// Training goes on in the mode that it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(Model& model) : model_(model) { model.set_training(false); }
  ~EvaluationMode() {
    try {
      model_.set_training(true);
    } catch (const std::exception&) {
      // The next step calls the same function of the plugin, and throws what it throws.
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;

 private:
  Model& model_;
};

}  // namespace

SampleTexts::SampleTexts(const Config& config, const Model& model, const WeightsOfRun& from)
    : text_(text_side(checked(config, model), from)) {
  const SampleConfig& sample = config.run.sample;
  const Vocabulary vocabulary = vocabulary_of(model);
  bytes_ = !text_ && vocabulary.size == kByteVocabulary;
  prompts_ = prompts_of(sample);
  try {
    make_tokens(prompts_, text_ ? &*text_ : nullptr, vocabulary.size, kTokenizer);
    check_prompts(prompts_, vocabulary, sample.tokens, "capstan.run.sample_tokens");
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(kPrompts) + ": " + error.what());
  }
  limits_ = {sample.tokens, vocabulary.stop};
  sampling_ = {sample.temperature, sample.top_k, sample.top_p, config.run.seed};
}

std::string SampleTexts::shown(const std::vector<std::int64_t>& ids) const {
  if (!text_ && !bytes_) return ids_text(ids);
  return as_utf8(text_of_tokens(ids, text_ ? &*text_ : nullptr));
}

void SampleTexts::write(Engine& engine, const std::function<void()>& got_on,
                        const std::function<void(const SampleText&)>& take) const {
  const EvaluationMode mode(engine.model());
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const Prompt& prompt = prompts_[i];
    got_on();
    const std::vector<std::int64_t> tokens =
        generate_tokens(engine, prompt.ids, limits_, sampling_, i, [&](std::int64_t) { got_on(); });
    take({i + 1, prompt.text ? as_utf8(*prompt.text) : shown(prompt.ids), shown(tokens)});
  }
}

}  // namespace capstan
