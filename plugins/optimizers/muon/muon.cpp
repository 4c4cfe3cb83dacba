#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "capstan/sdk/elements/elementwise.hpp"
#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "capstan/sdk/parallel.hpp"
#include "plugins/optimizers/muon/muon_kernel.hpp"
#include "plugins/optimizers/muon/newton_schulz.hpp"

namespace capstan::optimizers {
namespace {

// `momentum_buffer` is the average of gradients in both rules. Where there is an average of squares, the rule is
// AdamW's.
enum State : std::size_t { kStep, kMomentum, kSquares, kSquaresOfMatrix, kSquaresOfEmbedding };

constexpr std::int64_t kGrain = 8192;  // elements that one thread should at least have to do

struct MuonGroup {
  double lr, weight_decay, momentum, eps, adam_eps, beta1, beta2;
  double coefficients[3];
  std::int64_t steps;
  bool nesterov;
};

class Muon {
 public:
  Muon(const sdk::Host&, const sdk::Params& params)
      : gram_(params.text("ns_method") == "gram"),
        like_adamw_(params.has("adjust_lr_fn") && params.text("adjust_lr_fn") == "match_rms_adamw") {
    const double lr = params.number("lr");
    if (params.has("muon_lr")) muon_factor_ = params.number("muon_lr") / lr;
    if (params.has("adam_lr")) adam_factor_ = params.number("adam_lr") / lr;
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate others(slots.size());
    std::deque<MuonAdamNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const MuonGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      if (const auto squares = squares_of(slot)) {
        numbers.push_back(adam_numbers(group, t, step.grad_scale()));
        others.add(slot, {kMomentum, *squares}, &muon_adam_kernel, &numbers.back());
      } else {
        update_matrix(slot, group, static_cast<float>(step.grad_scale()));
      }
    }
    others.run();
  }

 private:
  /// The state that makes a parameter one of AdamW's.
  static std::optional<State> squares_of(const sdk::Slot& slot) {
    for (const State state : {kSquares, kSquaresOfMatrix, kSquaresOfEmbedding}) {
      if (slot.has_state(state)) return state;
    }
    return std::nullopt;
  }

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

  MuonAdamNumbers adam_numbers(const MuonGroup& group, std::int64_t t, double grad_scale) const {
    const auto step = static_cast<double>(t);
    const double lr = group.lr * adam_factor_;
    return {.moments = Moments(grad_scale, 0.0, group.beta1, group.beta2),
            .inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(group.beta2, step))),
            .eps = static_cast<float>(group.adam_eps),
            .decay = static_cast<float>(lr * group.weight_decay),
            .rate = static_cast<float>(lr / (1.0 - std::pow(group.beta1, step)))};
  }

  /// Muon (Jordan et al. 2024), as torch has it:
  ///   m += (1-mu)*(g - m);  u = orthogonal(nesterov ? g + mu*(m - g) : m);  p -= lr*decay*p;  p -= adjusted lr * u
  void update_matrix(const sdk::Slot& slot, const MuonGroup& group, float grad_scale) const {
    if (slot.numel() == 0) return;
    const auto rows = static_cast<std::size_t>(slot.full_shape()[0]);
    const NewtonSchulz iteration{static_cast<float>(group.coefficients[0]),
                                 static_cast<float>(group.coefficients[1]),
                                 static_cast<float>(group.coefficients[2]),
                                 group.eps,
                                 group.steps,
                                 gram_};
    const Matrix direction = iteration.orthogonal(momentum_of(slot, group, rows, grad_scale));
    const double lr = group.lr * muon_factor_;
    const auto keep = static_cast<float>(1.0 - lr * group.weight_decay);
    const auto rate = static_cast<float>(lr * shape_factor(direction));
    float* weights = slot.param();
    sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        weights[i] = weights[i] * keep - rate * direction.values[i];
      }
    });
  }

  /// Moves the momentum, and returns what is to be made orthogonal.
  static Matrix momentum_of(const sdk::Slot& slot, const MuonGroup& group, std::size_t rows, float grad_scale) {
    Matrix blend(rows, slot.numel() / rows);
    const sdk::Values gradients = slot.grad();
    float* momentum = slot.floats(kMomentum);
    const auto mu = static_cast<float>(group.momentum), fresh = static_cast<float>(1.0 - group.momentum);
    sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const float gradient = sdk::value_at(gradients, i) * grad_scale;
        momentum[i] += fresh * (gradient - momentum[i]);
        blend.values[i] = group.nesterov ? gradient + mu * (momentum[i] - gradient) : momentum[i];
      }
    });
    return blend;
  }

  double shape_factor(const Matrix& matrix) const {
    const auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
    return like_adamw_ ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  }

  bool gram_, like_adamw_;
  double muon_factor_ = 1, adam_factor_ = 1;  // what the group's rate is multiplied by
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Muon, "Muon">)
