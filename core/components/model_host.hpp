#pragma once

#include "capstan/plugin.h"

namespace capstan {

/// The host table for models, which exist before the engine that will run them: errors, log, JSON, batches, layers.
const capstan_host* model_host();

}  // namespace capstan
