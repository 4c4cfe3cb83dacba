#pragma once

#include <functional>

#include "core/model/model.hpp"

namespace capstan {

/// A model whose large parameters have no memory until an engine takes it; see DeferredValues. A model whose
/// construction reads or writes memory without LibTorch's operators is built again, whole, from the same state of the
/// default generator, and that is said: `build` may be called twice. What it throws is passed on.
Model without_values(const std::function<Model()>& build);

}  // namespace capstan
