#pragma once

#include "capstan/plugin.h"

namespace capstan {

/// A host table with what every component may use: error texts, the log, sinks, JSON. Rank 0 of 1; the functions that
/// need an engine are null until the engine fills them in.
capstan_host make_host();

}  // namespace capstan
