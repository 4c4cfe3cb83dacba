#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/muon/newton_schulz.hpp"

namespace capstan::optimizers {

// `momentum_buffer` is the average of gradients in both rules. Where there is an average of squares, the rule is
// AdamW's.
enum MuonState : std::size_t { kStep, kMomentum, kSquares, kSquaresOfMatrix, kSquaresOfEmbedding };

constexpr MuonState kStatesOfSquares[] = {kSquares, kSquaresOfMatrix, kSquaresOfEmbedding};

/// The state that makes a parameter one of AdamW's.
inline std::optional<MuonState> squares_of(const sdk::Slot& slot) {
  for (const MuonState state : kStatesOfSquares) {
    if (slot.has_state(state)) return state;
  }
  return std::nullopt;
}

/// Parameters of the optimizer that all groups share.
struct MuonChoices {
  bool gram, like_adamw;
  double muon_factor = 1, adam_factor = 1;  // what the group's rate is multiplied by

  explicit MuonChoices(const sdk::Params& params)
      : gram(params.text("ns_method") == "gram"),
        like_adamw(params.has("adjust_lr_fn") && params.text("adjust_lr_fn") == "match_rms_adamw") {
    const double lr = params.number("lr");
    if (params.has("muon_lr")) muon_factor = params.number("muon_lr") / lr;
    if (params.has("adam_lr")) adam_factor = params.number("adam_lr") / lr;
  }

  double shape_factor(double rows, double columns) const {
    return like_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  }
};

/// The numbers of a parameter group.
struct MuonGroup {
  double lr, weight_decay, momentum, eps, adam_eps, beta1, beta2;
  double coefficients[3];
  std::int64_t steps;
  bool nesterov;

  static MuonGroup read(const sdk::Group& group) {
    double betas[2];
    group.read("betas", betas, 2);
    const double eps = group.number("eps");
    MuonGroup numbers{group.number("lr"),
                      group.number("weight_decay"),
                      group.number("momentum"),
                      eps,
                      group.number_or("adam_eps", eps),
                      betas[0],
                      betas[1],
                      {},
                      static_cast<std::int64_t>(group.number("ns_steps")),
                      group.boolean("nesterov")};
    group.read("ns_coefficients", numbers.coefficients, 3);
    return numbers;
  }

  NewtonSchulz newton_schulz(bool gram) const {
    return {static_cast<float>(coefficients[0]),
            static_cast<float>(coefficients[1]),
            static_cast<float>(coefficients[2]),
            eps,
            steps,
            gram};
  }
};

}  // namespace capstan::optimizers
