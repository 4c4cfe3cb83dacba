#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/engine/engine.hpp"
#include "core/pretrained/model_text.hpp"
#include "core/run/generation.hpp"
#include "core/run/prompts.hpp"

namespace capstan {

/// A text that a model has written.
struct SampleText {
  std::size_t number = 0;    // of its prompt, from 1
  std::string prompt, text;  // UTF-8; of tokens that are not texts their ids, "101,102"
};

/// Where a run's weights come from, and with them perhaps a tokenizer.
struct WeightsOfRun {
  std::string checkpoint;  // that is resumed, DIR or DIR:TAG; empty: none
  std::string weights;     // of a fresh start, a file or folder; empty: none
};

/// The texts that a model writes now and then while it is trained (capstan.run.sample_every): what it makes of the same
/// prompts. They depend on the model, the seed of the run and the prompts alone, and change nothing of the training.
class SampleTexts {
 public:
  /// Reads the prompts and makes them tokens. Throws ConfigError naming the key for a model that does not continue
  /// sequences, sparse attention, prompts that are missing, empty or too long for the model, and RuntimeFault for a
  /// tokenizer that cannot be read.
  SampleTexts(const Config& config, const Model& model, const WeightsOfRun& from);

  /// Continues every prompt; `engine` is as before afterwards. Calls `take` with each text, and `got_on` before each
  /// prompt and after each token; what they throw ends the texts. Every rank calls it alike, between two steps. Throws
  /// what generate_tokens() throws.
  void write(Engine& engine, const std::function<void()>& got_on,
             const std::function<void(const SampleText&)>& take) const;

 private:
  std::string shown(const std::vector<std::int64_t>& ids) const;

  std::optional<ModelText> text_;  // none: tokens are bytes, or have no text
  bool bytes_ = false;
  std::vector<Prompt> prompts_;
  GenerationLimits limits_;
  TokenSampling sampling_;
};

}  // namespace capstan
