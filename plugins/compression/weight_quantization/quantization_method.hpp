#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/compression.hpp"
#include "module_scope.hpp"

namespace capstan::compression {

inline const std::string kWeightSection = "compression_training.weight_quantization";

/// A way to quantise weights: the section compression_training.weight_quantization has two of them.
class QuantizationMethod {
 public:
  virtual ~QuantizationMethod() = default;
  virtual sdk::CompressionPlan plan(const sdk::ModelTable& model) = 0;
  virtual bool active(std::int64_t updates) const = 0;
  virtual void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const = 0;
  virtual void transform(const sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values) const = 0;
  virtual int code_bits(std::string_view parameter, std::int64_t updates) const = 0;
  virtual void encode(const sdk::CompressedPiece& piece, std::int64_t updates, const sdk::Codes& codes) const = 0;
  /// So many updates are done.
  virtual void follow(std::int64_t) {}
  /// What must last, as JSON.
  virtual std::string saved() const { return "{}"; }
  virtual void load(const sdk::Document&) {}
};

/// What both read of the section.
struct QuantizationKeys {
  explicit QuantizationKeys(const sdk::Params& params);

  std::vector<GroupScope> scopes;
  std::int64_t offset = 0;
  std::uint64_t groups = 1;  // of a weight
  bool symmetric = true;
  bool half_scales = false;  // scales are numbers that float16 holds

  /// A number of a group, "target_bits", or `otherwise` where it is not given.
  static std::int64_t of_group(const sdk::Params& params, const GroupScope& scope, const std::string& key,
                               std::int64_t otherwise = 0);
};

/// The bits of codes that exports and collectives take.
constexpr int kMostCodeBits = 8;

/// Throws sdk::Error "where: text" unless `condition`.
void require(bool condition, const std::string& where, const std::string& text);
/// Throws sdk::ConfigMistake unless `groups` divides the weight; what would is told, the nearest below and above.
void check_groups(const sdk::ModelModule& module, std::uint64_t numel, std::uint64_t groups);
/// The modules of each group of the section, and how many could be chosen.
struct ChosenModules {
  Selection chosen;
  std::size_t of = 0;
};
ChosenModules choose_modules(const sdk::ModelTable& model, const std::vector<GroupScope>& scopes);

}  // namespace capstan::compression
