#include <algorithm>
#include <map>
#include <string>

#include "capstan/sdk/compression.hpp"
#include "module_scope.hpp"
#include "quantizer.hpp"

namespace capstan::compression {
namespace {

const std::string kSection = "compression_training.weight_quantization";

/// Weights whose compute copies are rounded to few bits in every forward. Keys: the section
/// compression_training.weight_quantization.
class WeightQuantization {
 public:
  WeightQuantization(sdk::Host, const sdk::Params& params) : scopes_(read_scopes(params, kSection)) {
    const auto require = [](bool condition, const std::string& where, const std::string& text) {
      if (!condition) throw sdk::Error(where + ": " + text);
    };
    require(scopes_.empty() || shared_integer(params, "quantize_weight_in_forward", 0) != 0,
            kSection + ".shared_parameters.quantize_weight_in_forward",
            "false quantises in the update (MoQ), which this plugin does not do. Set it to true.");
    offset_ = shared_integer(params, "schedule_offset", 0);
    groups_ = static_cast<std::uint64_t>(shared_integer(params, "quantize_groups", 1));
    symmetric_ = shared_text(params, "quantization_type", "symmetric") == "symmetric";
    const std::vector<std::string> corrections = params.texts("corrections");
    half_ = std::find(corrections.begin(), corrections.end(), "fp16-scales") != corrections.end();
    for (const GroupScope& scope : scopes_) {
      const std::int64_t bits =
          params.integer("/different_groups/" + sdk::Params::escaped(scope.name) + "/params/target_bits");
      require(bits >= 1 && bits <= kMostBits, scope.where + ".params.target_bits",
              "must be 1 to 32, got " + std::to_string(bits) + ".");
      require(bits > 2 || symmetric_, scope.where + ".params.target_bits",
              std::to_string(bits) + " bits need quantization_type \"symmetric\".");
      bits_.push_back(static_cast<int>(bits));
    }
  }

  sdk::CompressionPlan plan(const sdk::ModelTable& model) {
    const std::vector<ModuleKind> all = {ModuleKind::kLinear, ModuleKind::kConv2d, ModuleKind::kEmbedding};
    const Selection chosen = select_modules(model, scopes_, all, {ModuleKind::kLinear, ModuleKind::kConv2d});
    const auto fits = [&](const sdk::ModelModule& module) { return kind_of(module) != ModuleKind::kOther; };
    const auto of = static_cast<std::size_t>(std::count_if(model.modules.begin(), model.modules.end(), fits));
    sdk::CompressionPlan plan;
    plan.warnings = chosen.warnings;
    for (std::size_t i = 0; i < scopes_.size(); ++i) {
      for (const sdk::ModelModule* module : chosen.of_group[i]) add(plan, *module, scopes_[i], bits_[i]);
      plan.report.push_back(
          report_line("weight_quantization", scopes_[i], chosen.of_group[i], of, bits_text(bits_[i])));
    }
    return plan;
  }

  bool active(std::int64_t updates) const { return updates >= offset_; }

  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const {
    of(piece).measure(piece, round, partials);
  }
  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) const {
    of(piece).transform(piece, values);
  }
  void encode(const sdk::CompressedPiece& piece, const sdk::Codes& codes) const { of(piece).encode(piece, codes); }

 private:
  static constexpr std::int64_t kMostBits = 32, kMostCodeBits = 8, kLeastConvBits = 4;

  void add(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const GroupScope& scope, int bits) {
    const std::int64_t numel = weight_numel(module);
    const bool conv = kind_of(module) == ModuleKind::kConv2d, embedding = kind_of(module) == ModuleKind::kEmbedding;
    if (conv && bits < kLeastConvBits) {
      throw sdk::Error(scope.where + ".params.target_bits: convolutions need 4 bits or more, got " +
                       std::to_string(bits) + ", and '" + module.path + "' is one.");
    }
    // Each row of an embedding is a vector of its own.
    const std::uint64_t groups = embedding ? static_cast<std::uint64_t>(module.find("weight")->shape[0]) : groups_;
    check_groups(module, static_cast<std::uint64_t>(numel), groups);
    const Quantizer& quantizer =
        quantizers_.emplace(module.full_name("weight"), Quantizer(bits, symmetric_, half_)).first->second;
    sdk::CompressionPlan::Parameter& parameter = plan.parameters.emplace_back();
    parameter.name = module.full_name("weight");
    parameter.groups = groups;
    parameter.measures = quantizer.measures();
    parameter.bits = bits <= kMostCodeBits ? bits : 0;
    parameter.zero_points = quantizer.has_zero_points();
  }

  /// quantize_groups must divide the weight; what would is told, the nearest below and above.
  static void check_groups(const sdk::ModelModule& module, std::uint64_t numel, std::uint64_t groups) {
    if (groups <= numel && numel % groups == 0) return;
    std::uint64_t below = std::min(groups, numel), above = groups;
    while (below > 1 && numel % below != 0) --below;
    while (above < numel && numel % above != 0) ++above;
    std::string fits = std::to_string(below);
    if (above <= numel && numel % above == 0 && above != below) fits += " and " + std::to_string(above);
    throw sdk::Error(kSection + ".shared_parameters.quantize_groups: " + std::to_string(groups) +
                     " does not divide the weight of '" + module.path + "', which has " + std::to_string(numel) +
                     " elements; " + fits + (fits.find(' ') == std::string::npos ? " does." : " do."));
  }

  const Quantizer& of(const sdk::CompressedPiece& piece) const {
    const auto found = quantizers_.find(piece.name());
    if (found == quantizers_.end()) piece.fail("is not in the plan of weight_quantization.");
    return found->second;
  }

  std::vector<GroupScope> scopes_;
  std::vector<int> bits_;  // one a group
  std::int64_t offset_ = 0;
  std::uint64_t groups_ = 1;
  bool symmetric_ = true, half_ = false;
  std::map<std::string, Quantizer, std::less<>> quantizers_;  // by the parameter's name
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::WeightQuantization, "weight_quantization">)
