#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <string>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/trained_model.hpp"
#include "core/engine/engine.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_data.hpp"
#include "core/run/run_model.hpp"
#include "core/run/weights_text.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

/// Perplexity and bits a byte of a language model, by the mean loss of a token; empty for another model. A token takes
/// loss / ln 2 bits, shared out over the bytes that it stands for.
std::string of_language(double loss, bool language_model, const std::optional<double>& bytes_per_token) {
  if (!language_model) return "";
  std::string text = ", perplexity=" + fixed(std::exp(loss), 4);
  if (bytes_per_token) text += ", bits_per_byte=" + fixed(loss / std::numbers::ln2 / *bytes_per_token, 4);
  return text;
}

/// Bytes of text that a token of the data stands for, where the data do not tell: by the tokenizer that came with the
/// weights. Special tokens stand for no text. Nothing without a tokenizer or labels.
std::optional<double> decoded_bytes_per_token(const EvalArguments& arguments, const LoadedConfig& loaded,
                                              const RunData& data) {
  const std::optional<ModelText> text =
      text_of_weights(arguments.checkpoint, weights_file({arguments.checkpoint, arguments.init_from}, loaded));
  if (!text) return std::nullopt;
  // One text of all samples, so that a character which a sample cuts in two has its bytes.
  tokenizer::DecodeStream decoding(text->tokenizer());
  std::size_t tokens = 0, bytes = 0;
  for (std::int64_t sample = 0; sample < data.samples; ++sample) {
    const Batch batch = data.read({&sample, 1});
    const auto labels = batch.tensors.find("labels");
    if (labels == batch.tensors.end() || labels->second.scalar_type() != at::kLong) return std::nullopt;
    const at::Tensor ids = labels->second.contiguous();
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      const std::int64_t id = ids.const_data_ptr<std::int64_t>()[i];
      if (id >= text->tokenizer().vocabulary_size()) return std::nullopt;  // of another tokenizer
      if (id < 0) continue;                                                // not learned
      ++tokens;
      bytes += decoding.push(static_cast<tokenizer::Id>(id)).size();
    }
  }
  bytes += decoding.finish().size();
  return bytes > 0 ? std::optional(static_cast<double>(bytes) / static_cast<double>(tokens)) : std::nullopt;
}

int evaluate_loaded(const EvalArguments& arguments, const LoadedConfig& loaded) {
  Model model = build_model(loaded);
  const auto dataset = std::make_shared<const Dataset>(
      open_data(loaded.config.run.eval_data_paths, "capstan.data.eval_path", loaded, model));
  const RunData data = run_data(dataset);
  const bool language_model = model.describe().find("vocab_size") != nullptr;
  Engine engine(std::move(model), loaded.config, loaded.plugins, loaded.communicator);
  take_weights(engine, {arguments.checkpoint, arguments.init_from}, loaded);
  Evaluation evaluation(data, loaded.config.batch.micro_batch_size, engine.rank(), engine.world_size());
  const double loss = engine.eval_batch([&] { return evaluation.next(); }, evaluation.own_batches());
  if (engine.rank() > 0) return 0;
  std::optional<double> bytes_per_token = dataset->bytes_per_token();
  if (language_model && !bytes_per_token) bytes_per_token = decoded_bytes_per_token(arguments, loaded, data);
  print("step=" + std::to_string(engine.progress().global_steps) + ", eval_loss=" + fixed(loss, 6) + " over " +
        grouped(evaluation.samples()) + " samples of " + grouped(data.sequence_length) + " tokens" +
        of_language(loss, language_model, bytes_per_token) + "\n");
  return 0;
}

}  // namespace

int evaluate(const EvalArguments& arguments) {
  const LoadedConfig loaded = load_to_evaluate(
      arguments.config, {arguments.checkpoint, arguments.init_from},
      "eval: no weights are named. Give --checkpoint DIR[:TAG], --init-from model.safetensors or --model hf:FOLDER.");
  return run_as_one(loaded, [&] { return evaluate_loaded(arguments, loaded); });
}

}  // namespace capstan::cli
