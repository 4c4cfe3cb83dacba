#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/compression/group_layout.hpp"
#include "core/model/model.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// What a component of kind "compression" answered: what it acts on, and how.
struct CompressionPlan {
  /// Values that the engine keeps for a parameter.
  struct State {
    std::string name;
    at::ScalarType dtype = at::kByte;
    bool of_elements = false;         // one value an element, else whole on every rank
    std::int64_t numel = 0;           // of the whole
    bool trained = false;             // by the optimizer, as a parameter of its own
    std::vector<std::int64_t> shape;  // of a trained one
    double bound = 0;                 // a trained one begins uniform in [-bound, bound)
    std::string parameter;            // a trained one's own name, "blocks.0.fc.row_mask_scores"
  };
  struct Parameter {
    GroupLayout layout;
    std::vector<std::vector<Join>> measures;  // one list a round
    int bits = 0;                             // of its codes; 0: it has none
    bool zero_points = false;                 // whether some zero point may be other than 0
    std::vector<State> states;
    std::string states_of;        // the parameter whose states are shown as well; empty: its own
    bool gradient = false;        // gradient() is called for it
    std::size_t numbers() const;  // of all rounds: statistics of a group
  };
  std::map<std::string, Parameter> parameters;
  std::vector<std::string> order;               // of the parameters, as the plan names them
  std::vector<std::string> operands;            // paths of modules
  std::map<std::string, std::string> named_by;  // by such a path, the key of the configuration that names the module
  std::vector<std::string> report, warnings;
};

/// The modules of a model as compressions are told of them: {"modules": [...], "seed": n}. The model says in describe()
/// which of its layers are several in one: {"fused": {"blocks.0.attn.qkv": 3}}.
Json module_table(const Model& model, std::uint64_t seed);

/// Reads a plan for the modules of that table. Throws PluginError that begins with `where` for one that contradicts
/// them or itself.
CompressionPlan read_plan(const Json& plan, const Json& modules, const std::string& where);

}  // namespace capstan
