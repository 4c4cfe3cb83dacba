// How the step under way is given up, as a whole or in part, and what a step is refused for before it begins.

#include "core/engine/state.hpp"
#include "core/errors.hpp"

namespace capstan {

void Engine::State::refuse_unfinished_step() const {
  if (under_way.unfinished == nullptr) return;
  throw RuntimeFault(std::string("an exception has ended the ") + under_way.unfinished + " of " + step_name() +
                     " half way. Load a checkpoint before training goes on.");
}

void Engine::State::refuse_unfrozen() const {
  for (const NamedTensor& parameter : frozen) {
    if (!parameter.tensor.requires_grad()) continue;
    throw RuntimeFault("parameter '" + parameter.name +
                       "' was frozen when the engine was made and is trainable now, and this engine would never train "
                       "it. Make a new engine of the model, or freeze the parameter again (requires_grad_(False)).");
  }
}

void Engine::State::zero_grad() {
  refuse_unfinished_step();
  if (under_way.micro_step == 0) return;
  store.settle();
  store.drop_gradients(/*applied=*/false);
  under_way.losses.clear();
  under_way.loss_sum = 0;
  under_way.loss_finite = true;
  under_way.dropped = under_way.micro_step;
}

void Engine::State::abandon_step() {
  store.abandon_step();
  compressions.abandon_step();
  recorded.clear();
  curvature.forget();
  under_way = {};
  for (Timers* timers : {&micro_timers, &step_timers, &optimizer_timers}) timers->take();
}

}  // namespace capstan
