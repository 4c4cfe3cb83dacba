// Whether a step may be applied: losses and gradients that are not finite, and the norm that clips.

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

/// Clipping divides by the norm plus this, as DeepSpeed does.
constexpr double kClipEpsilon = 1e-6;

bool all_finite(const at::Tensor& tensor) { return at::isfinite(tensor).all().item<bool>(); }

}  // namespace

std::string text_of(const std::vector<BadLoss>& bad, int ranks) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(bad.size(), kNamed); ++i) {
    text += (i == 0 ? "micro-batch " : ", micro-batch ") + std::to_string(bad[i].micro_step);
    if (ranks > 1) text += " of rank " + std::to_string(bad[i].rank);
  }
  if (bad.size() > kNamed)
    text +=
        ", and of " + std::to_string(bad.size() - kNamed) + (bad.size() == kNamed + 1 ? " more rank" : " more ranks");
  return text;
}

std::string Engine::State::first_not_finite() {
  std::string parameter, gradient;
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    for (const Piece& piece : store.pieces(sub_group)) {
      const ParameterEntry& entry = store.entries()[piece.entry];
      const at::Tensor& values = piece.gradient.defined() ? piece.gradient : store.gradients().shown(piece.entry);
      const bool has_one = values.defined() && store.has_gradient(piece.entry);
      if (parameter.empty() && !all_finite(piece.master)) parameter = entry.name;
      if (gradient.empty() && has_one && !all_finite(values)) gradient = entry.name;
    }
    store.release(sub_group, false);
  }
  if (!parameter.empty()) return "The values of parameter '" + parameter + "' are not finite";
  if (!gradient.empty())
    return "All parameters are finite; the first gradient that is not is that of '" + gradient + "'";
  return communicator->size() == 1 ? "All parameters and gradients are finite"
                                   : "The parts of parameters and gradients that rank " +
                                         std::to_string(communicator->rank()) + " updates are finite";
}

/// Stops or skips a step whose numbers cannot be used, as capstan.run.on_nan says.
void Engine::State::stop_or_skip(const std::string& what) {
  const std::string found = what + ". " + first_not_finite() + ".";
  if (config.run.on_nan == "stop") {
    throw RuntimeFault(found +
                       " Resume from the last checkpoint with a lower learning rate, or set "
                       "capstan.run.on_nan to \"continue\" to skip such steps.");
  }
  log::warning(found + " The step is skipped (capstan.run.on_nan is \"continue\").");
}

bool Engine::State::check_and_measure(StepReport& report, double& grad_scale) {
  const PrecisionConfig& precision = config.precision;
  report.loss_scale = scaler.scale();
  report.grad_norm = std::numeric_limits<double>::quiet_NaN();
  grad_scale = 1.0 / scaler.scale();

  const auto& gradients = store.collect_gradients();
  if (!store.sharding()) under_way.squares = sum_of_squares(gradients);
  under_way.overflow = !std::isfinite(under_way.squares.exact);
  const std::string bad_losses = text_of(under_way.bad_losses, communicator->size());
  // Activations that overflow at a loss scale make both the loss and gradients infinite or NaN.
  if (!bad_losses.empty() && !(under_way.overflow && precision.scales_loss)) {
    stop_or_skip("the loss is not finite at " + step_name() + " (" + bad_losses + ")");
    return false;
  }
  refuse_unused_parameters();
  if (reports_norm()) report.grad_norm = std::sqrt(under_way.squares.exact) / scaler.scale();
  if (under_way.overflow) {
    if (tests_overflow(precision)) {
      log::info("OVERFLOW! Skipping " + step_name() + ": a gradient is not finite" +
                (precision.scales_loss ? " at loss scale " + shown(Json(scaler.scale())) : "") +
                (bad_losses.empty() ? "." : ", nor is the loss (" + bad_losses + ")."));
    } else {
      stop_or_skip("a gradient is not finite at " + step_name() + ", though the loss is");
    }
    return false;
  }
  if (config.gradient_clipping > 0) {
    const double norm_to_clip = std::sqrt(under_way.squares.rounded) / scaler.scale();
    grad_scale *= std::min(1.0, config.gradient_clipping / (norm_to_clip + kClipEpsilon));
  }
  return true;
}

void Engine::State::refuse_unused_parameters() {
  if (config.zero.ignore_unused_parameters) return;
  const std::vector<ParameterEntry>& entries = store.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (store.has_gradient(i) || entries[i].parameter.numel() == 0) continue;
    if (compressions.is_trained_state(entries[i].name)) continue;  // until the compression acts
    throw RuntimeFault("parameter '" + entries[i].name + "' got no gradient at " + step_name() +
                       ", and zero_optimization.ignore_unused_parameters is false. Freeze it "
                       "(requires_grad_(false)), or set the key to true.");
  }
}

}  // namespace capstan
