#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/run/token_sampling.hpp"

namespace capstan {

/// Ends of a sequence.
struct GenerationLimits {
  std::int64_t most_tokens = 64;   // new ones
  std::vector<std::int64_t> stop;  // the first token that is one of these is the last one
};

/// Logits that are not numbers.
class LogitsFault : public RuntimeFault {
 public:
  using RuntimeFault::RuntimeFault;
};

/// Continues a prompt of at least one token with the model that `engine` holds. Returns the new tokens, which depend on
/// the model, the prompt, `sampling` and `sequence`, the number of the prompt among those of a run. `on_token`, where
/// there is one, is called with each token as it is chosen. Every rank of the engine calls the function alike. The
/// model stays in evaluation mode. Throws PluginError with the model's own text, ConfigError for a model that does not
/// continue sequences, and LogitsFault. [engine]
std::vector<std::int64_t> generate_tokens(Engine& engine, const std::vector<std::int64_t>& prompt,
                                          const GenerationLimits& limits, const TokenSampling& sampling,
                                          std::uint64_t sequence,
                                          const std::function<void(std::int64_t)>& on_token = {});

/// Continues several prompts together, of which prompt i is sequence `first_sequence` + i, each as generate_tokens()
/// does. On the CPU without autocast none of its tokens depends on the prompts beside it. One after the other with a
/// model that takes no rows of different lengths ("ragged_decode" of its facts). The keys and values of all are in
/// memory at once. [engine]
std::vector<std::vector<std::int64_t>> generate_batch(Engine& engine,
                                                      const std::vector<std::vector<std::int64_t>>& prompts,
                                                      const GenerationLimits& limits, const TokenSampling& sampling,
                                                      std::uint64_t first_sequence);

}  // namespace capstan
