#pragma once

#include <map>

#include "quantization_method.hpp"
#include "quantizer.hpp"

namespace capstan::compression {

/// quantize_weight_in_forward: weights whose compute copies are rounded to target_bits in every forward.
class ForwardQuantization final : public QuantizationMethod {
 public:
  explicit ForwardQuantization(const sdk::Params& params);

  sdk::CompressionPlan plan(const sdk::ModelTable& model) override;
  bool active(std::int64_t updates) const override { return updates >= keys_.offset; }
  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const override;
  void transform(const sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values) const override;
  int code_bits(std::string_view parameter, std::int64_t updates) const override;
  void encode(const sdk::CompressedPiece& piece, std::int64_t updates, const sdk::Codes& codes) const override;

 private:
  void add(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const GroupScope& scope, int bits);
  const Quantizer& of(const sdk::CompressedPiece& piece) const;

  QuantizationKeys keys_;
  std::vector<int> bits_;                                     // one a group
  std::map<std::string, Quantizer, std::less<>> quantizers_;  // by the parameter's name
};

}  // namespace capstan::compression
