#pragma once

#include "capstan/plugin.h"

namespace capstan {

/// What every program lends to components: errors, log, text, JSON; rank 0 of 1, no stream. What needs an engine
/// (collectives, norms, groups, batches, layers, parameters, tokenizers) fails with a sentence until the engine fills
/// it in. ctx is null.
capstan_host make_host();

}  // namespace capstan
