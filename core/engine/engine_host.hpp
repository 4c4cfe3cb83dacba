#pragma once

#include "capstan/plugin.h"

namespace capstan {

/// Fills the functions of the host table that need an engine: collectives (of one process), batches, layers, groups,
/// parameters. `host.ctx` must point to the engine's EngineHostContext.
void add_engine_functions(capstan_host& host);

class Model;
class ParameterStore;
struct EngineHostContext {
  ParameterStore* store = nullptr;  // null until it is built
  const Model* model = nullptr;     // whose modules are shown
};

}  // namespace capstan
