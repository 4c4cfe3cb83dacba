#include <memory>

#include "forward_quantization.hpp"
#include "update_quantization.hpp"

namespace capstan::compression {
namespace {

std::unique_ptr<QuantizationMethod> method_of(sdk::Host host, const sdk::Params& params) {
  const bool in_forward = shared_integer(params, "quantize_weight_in_forward", 0) != 0;
  if (in_forward || params.names("different_groups").empty()) return std::make_unique<ForwardQuantization>(params);
  return std::make_unique<UpdateQuantization>(host, params);
}

/// The section compression_training.weight_quantization: its key quantize_weight_in_forward chooses the method.
class WeightQuantization {
 public:
  WeightQuantization(sdk::Host host, const sdk::Params& params) : method_(method_of(host, params)) {}

  sdk::CompressionPlan plan(const sdk::ModelTable& model) { return method_->plan(model); }
  bool active(std::int64_t updates) const { return method_->active(updates); }
  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const {
    method_->measure(piece, round, partials);
  }
  void transform(const sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values) const {
    method_->transform(piece, updates, values);
  }
  int code_bits(std::string_view parameter, std::int64_t updates) const {
    return method_->code_bits(parameter, updates);
  }
  void encode(const sdk::CompressedPiece& piece, std::int64_t updates, const sdk::Codes& codes) const {
    method_->encode(piece, updates, codes);
  }
  void prepare(std::span<const sdk::CompressedPiece>, std::int64_t updates, bool, const sdk::PieceRanks&) {
    method_->follow(updates);
  }
  void save(const sdk::Sink& sink) const { sink.write(method_->saved()); }
  void load(const sdk::Document& saved) { method_->load(saved); }

 private:
  std::unique_ptr<QuantizationMethod> method_;
};

}  // namespace
}  // namespace capstan::compression

CAPSTAN_PLUGIN(&capstan::sdk::compression<capstan::compression::WeightQuantization, "weight_quantization">)
