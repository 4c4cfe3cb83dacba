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
  struct Parameter {
    GroupLayout layout;
    std::vector<std::vector<Join>> measures;  // one list a round
    int bits = 0;                             // of its codes; 0: it has none
    bool zero_points = false;                 // whether some zero point may be other than 0
    std::size_t numbers() const;              // of all rounds: statistics of a group
  };
  std::map<std::string, Parameter> parameters;
  std::vector<std::string> operands;            // paths of modules
  std::map<std::string, std::string> named_by;  // by such a path, the key of the configuration that names the module
  std::vector<std::string> report, warnings;
};

/// The modules of a model as compressions are told of them: {"modules": [...], "seed": n}.
Json module_table(const Model& model, std::uint64_t seed);

/// Reads a plan for the modules of that table. Throws PluginError that begins with `where` for one that contradicts
/// them or itself.
CompressionPlan read_plan(const Json& plan, const Json& modules, const std::string& where);

}  // namespace capstan
