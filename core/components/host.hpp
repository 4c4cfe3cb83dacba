#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/comm/communicator.hpp"

namespace capstan {

/// Fills the functions of the host table that need an engine: collectives, batches, layers, groups, parameters.
/// `host.ctx` must point to the engine's EngineHostContext.
void add_engine_functions(capstan_host& host);

class Accelerator;
class Compressions;
class Curvature;
class Model;
class Pacing;
class ParameterStore;

struct HostOfGroup;
struct EngineHostContext {
  Communicator* communicator = nullptr;                   // null: one process
  ParameterStore* store = nullptr;                        // null until it is built
  const Compressions* compressions = nullptr;             // null: none
  const Model* model = nullptr;                           // the model whose modules are shown
  const Accelerator* accelerator = nullptr;               // null: the host
  const capstan_host* host = nullptr;                     // the host whose ctx this struct is
  const std::vector<std::string>* layer_names = nullptr;  // of the model; null until it is there
  std::map<std::string, double>* recorded = nullptr;      // numbers of the step under way, by their whole tags
  std::map<std::string, double>* told = nullptr;          // numbers that components tell each other
  Curvature* curvature = nullptr;
  const Pacing* pacing = nullptr;
  /// The groups that split has made, by the colors of all ranks.
  std::map<std::vector<std::uint32_t>, std::unique_ptr<HostOfGroup>> groups;
};

/// A group of ranks that capstan_host.split made, with its host table.
struct HostOfGroup {
  std::unique_ptr<Communicator> communicator;
  EngineHostContext context;
  capstan_host host;
};

}  // namespace capstan
