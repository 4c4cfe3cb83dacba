#include "forward_quantization.hpp"

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::compression {
namespace {

constexpr std::int64_t kMostBits = 32, kLeastConvBits = 4;

int codes_of(int bits) { return bits <= kMostCodeBits ? bits : 0; }

}  // namespace

ForwardQuantization::ForwardQuantization(const sdk::Params& params) : keys_(params) {
  for (const GroupScope& scope : keys_.scopes) {
    const std::int64_t bits = QuantizationKeys::of_group(params, scope, "target_bits");
    require(bits >= 1 && bits <= kMostBits, scope.where + ".params.target_bits",
            "must be 1 to 32, got " + std::to_string(bits) + ".");
    require(bits > 2 || keys_.symmetric, scope.where + ".params.target_bits",
            std::to_string(bits) + " bits need quantization_type \"symmetric\".");
    bits_.push_back(static_cast<int>(bits));
  }
}

sdk::CompressionPlan ForwardQuantization::plan(const sdk::ModelTable& model) {
  const auto [chosen, of] = choose_modules(model, keys_.scopes);
  sdk::CompressionPlan plan;
  sdk::ConfigMistakes mistakes;
  plan.warnings = chosen.warnings;
  for (std::size_t i = 0; i < keys_.scopes.size(); ++i) {
    for (const sdk::ModelModule* module : chosen.of_group[i]) {
      mistakes.gather([&] { add(plan, *module, keys_.scopes[i], bits_[i]); });
    }
    plan.report.push_back(
        report_line("weight_quantization", keys_.scopes[i], chosen.of_group[i], of, bits_text(bits_[i])));
  }
  mistakes.throw_if_any();
  return plan;
}

void ForwardQuantization::add(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const GroupScope& scope,
                              int bits) {
  const std::int64_t numel = weight_numel(module);
  const bool conv = kind_of(module) == ModuleKind::kConv2d, embedding = kind_of(module) == ModuleKind::kEmbedding;
  require(!conv || bits >= kLeastConvBits, scope.where + ".params.target_bits",
          "convolutions need 4 bits or more, got " + std::to_string(bits) + ", and '" + module.path + "' is one.");
  // Each row of an embedding is a vector of its own.
  const std::uint64_t groups = embedding ? static_cast<std::uint64_t>(module.find("weight")->shape[0]) : keys_.groups;
  check_groups(module, static_cast<std::uint64_t>(numel), groups);
  const Quantizer& quantizer =
      quantizers_.emplace(module.full_name("weight"), Quantizer(bits, keys_.symmetric, keys_.half_scales))
          .first->second;
  sdk::CompressionPlan::Parameter& parameter = plan.parameters.emplace_back();
  parameter.name = module.full_name("weight");
  parameter.groups = groups;
  parameter.measures = quantizer.measures();
  parameter.bits = codes_of(bits);
  parameter.zero_points = quantizer.has_zero_points();
}

const Quantizer& ForwardQuantization::of(const sdk::CompressedPiece& piece) const {
  const auto found = quantizers_.find(piece.name());
  if (found == quantizers_.end()) piece.fail("is not in the plan of weight_quantization.");
  return found->second;
}

void ForwardQuantization::measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const {
  of(piece).measure(piece, round, partials);
}

void ForwardQuantization::transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) const {
  of(piece).transform(piece, values);
}

int ForwardQuantization::code_bits(std::string_view parameter, std::int64_t) const {
  const auto found = quantizers_.find(parameter);
  return found == quantizers_.end() ? 0 : codes_of(found->second.bits());
}

void ForwardQuantization::encode(const sdk::CompressedPiece& piece, std::int64_t, const sdk::Codes& codes) const {
  of(piece).encode(piece, codes);
}

}  // namespace capstan::compression
