#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/compression.hpp"

/// Which modules the groups of a section of compression_training act on.
namespace capstan::compression {

enum class ModuleKind { kLinear, kConv2d, kEmbedding, kOther };

/// By the class's name and the dimensions of the module's own parameter `weight`; without one it is kOther.
ModuleKind kind_of(const sdk::ModelModule& module);

/// One of `different_groups`.
struct GroupScope {
  std::string name, where;            // "wq1", "compression_training.weight_quantization.different_groups.wq1"
  std::vector<std::string> patterns;  // regular expressions searched in the modules' paths
  std::vector<std::vector<std::string>> related;  // for each of these, what shrinks along; empty: nothing does
  bool any = false;                               // all modules of the default kinds: no `modules`, or "*"
};

/// The groups of the parameter `different_groups`, in their order. `section`: the section's path.
std::vector<GroupScope> read_scopes(const sdk::Params& params, const std::string& section);

/// A member of `shared_parameters`, or what the language has for one that is not given.
std::int64_t shared_integer(const sdk::Params& params, const std::string& key, std::int64_t otherwise);
std::string shared_text(const sdk::Params& params, const std::string& key, const std::string& otherwise);

struct Selection {
  std::vector<std::vector<const sdk::ModelModule*>> of_group;  // in the model's order
  /// What each expression of each group finds, in the model's order, with modules that are frozen.
  std::vector<std::vector<std::vector<const sdk::ModelModule*>>> of_pattern;
  std::vector<std::string> warnings;
};

/// The modules of each group: those of an allowed kind whose path an expression is found in, or of a default kind for a
/// group without expressions. A module whose weight is frozen is left out with a warning. Throws sdk::ConfigMistake for
/// an expression that is none, and for a module that is found twice.
Selection select_modules(const sdk::ModelTable& model, const std::vector<GroupScope>& scopes,
                         const std::vector<ModuleKind>& allowed, const std::vector<ModuleKind>& by_default);

/// The modules whose path an expression is found in, of whatever kind. Throws sdk::ConfigMistake for one that is
/// none.
std::vector<const sdk::ModelModule*> search_modules(const sdk::ModelTable& model, const std::string& pattern,
                                                    const std::string& where);

/// "weight_quantization wq1: 12 of 50 modules, 8 bits, 3.1 M weights"; of 50 that could be chosen.
std::string report_line(std::string_view method, const GroupScope& group,
                        const std::vector<const sdk::ModelModule*>& modules, std::size_t of, const std::string& how);
/// "8 bits"
std::string bits_text(int bits);

/// The elements of a module's weight.
std::int64_t weight_numel(const sdk::ModelModule& module);

}  // namespace capstan::compression
