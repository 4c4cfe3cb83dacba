#pragma once

#include "token_choice.hpp"

namespace capstan::random_ltd {

/// Draws for each sample `keep` of its tokens, each set of positions as probable as any other. What is drawn depends on
/// the seed, the step, the place of the sample in the order of all samples and the layer: on nothing that micro-batches
/// or the number of ranks would change.
at::Tensor draw_positions(std::uint64_t seed, const TokenChoice& choice);

}  // namespace capstan::random_ltd
