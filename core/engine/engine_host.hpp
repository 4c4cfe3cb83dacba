#pragma once

#include "capstan/plugin.h"

namespace capstan {

/// Fills the functions of the host table that need an engine: collectives, batches, layers, groups, parameters.
/// `host.ctx` must point to the engine's EngineHostContext.
void add_engine_functions(capstan_host& host);

class Accelerator;
class Communicator;
class Model;
class ParameterStore;
struct EngineHostContext {
  Communicator* communicator = nullptr;      // null: one process
  ParameterStore* store = nullptr;           // null until it is built
  const Model* model = nullptr;              // whose modules are shown
  const Accelerator* accelerator = nullptr;  // null: the host
};

}  // namespace capstan
