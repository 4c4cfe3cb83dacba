#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/compression.hpp"
#include "masks.hpp"
#include "module_scope.hpp"

namespace capstan::compression {

/// What row, head and channel pruning differ in.
struct UnitMethod {
  const char *name, *scores, *unit;  // "row_pruning", "row_mask_scores", "rows"
  ModuleKind kind;                   // of the modules that lose units
  bool of_inputs;                    // units are columns (heads), not rows: the bias is not theirs
};

/// Removes whole units of weights: rows of linear layers, heads, output channels of convolutions. A mask of 0 and 1
/// multiplies them and what belongs to them; `l1` takes the units with the largest L1 norm once, at first, `topk` those
/// with the largest trained scores, anew after each update (movement pruning, Sanh et al. 2020, arXiv 2005.07683,
/// section 3; straight-through gradient of the mask). Keys: compression_training.<method>.
class UnitPruning {
 public:
  UnitPruning(const UnitMethod& method, const sdk::Params& params);

  sdk::CompressionPlan plan(const sdk::ModelTable& model);
  bool active(std::int64_t updates) const { return updates >= offset_; }
  void prepare(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates, bool fresh,
               const sdk::PieceRanks& ranks);
  void transform(const sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values);
  void gradient(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates, const sdk::PieceRanks& ranks);
  std::vector<sdk::KeptAxis> keep(std::span<const sdk::CompressedPiece> pieces, std::int64_t updates);

 private:
  /// Modules that lose what a target loses.
  struct Related {
    const sdk::ModelModule* module;
    std::int64_t axis;    // of its weight
    std::int64_t repeat;  // how often the units stand on that axis: in fused layers several times
  };
  /// A weight that loses units.
  struct Target {
    std::string weight;
    std::uint64_t count = 0, keep = 0;  // units
    std::vector<sdk::KeptAxis> axes;    // what is removed; `kept` counts units so far
    std::vector<std::uint64_t> widths;  // for each of these, how many indices a unit has
  };
  /// A parameter under a target's mask.
  struct Masked {
    std::size_t target;
    UnitLayout units;
    bool is_weight;
  };

  std::size_t count_fitting(const sdk::ModelTable& model) const;
  void add_target(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const GroupScope& scope, double ratio);
  void add_masked(sdk::CompressionPlan& plan, const std::string& name, std::size_t target, const UnitLayout& units);
  void add_related(sdk::CompressionPlan& plan, const sdk::ModelTable& model, const GroupScope& scope,
                   const std::vector<std::vector<const sdk::ModelModule*>>& of_pattern);
  void relate(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const sdk::ModelModule& related,
              const std::string& where);
  void check_fit(const sdk::ModelModule& module, const sdk::ModelModule& related, std::int64_t has, std::int64_t needs,
                 const char* what, const std::string& where) const;
  const Masked& masked(const sdk::CompressedPiece& piece) const;

  UnitMethod method_;
  std::string section_;
  std::vector<GroupScope> scopes_;
  std::vector<double> ratios_;  // one a group
  std::int64_t offset_ = 0, heads_ = 0;
  bool trained_ = false;
  std::vector<Target> targets_;
  std::map<std::string, std::size_t, std::less<>> target_of_;  // by the module's path
  std::map<std::string, Masked, std::less<>> masked_;          // by the parameter's name
};

}  // namespace capstan::compression
