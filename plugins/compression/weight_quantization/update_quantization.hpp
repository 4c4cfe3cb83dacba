#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bit_schedule.hpp"
#include "quantization_method.hpp"
#include "update_quantizer.hpp"

namespace capstan::compression {

/// A weight of the plan, in the model's order.
struct MovingWeight {
  std::string name;  // "blocks.0.fc.weight"
  std::int64_t numel = 0;
};

/// What a replay of a recorded run puts in the place of Capstan's own.
struct UpdateRules {
  BitSchedule::After after = &BitSchedule::evenly;
  std::int64_t before_first = 0;  // updates that are counted before the first forward
  /// The noise of stochastic rounding of weight `index`, of all weights, at a number of updates that the technique has
  /// been on for.
  using MakeNoise = std::function<Noise(const std::vector<MovingWeight>& weights, std::size_t index,
                                        std::int64_t updates, std::uint64_t seed)>;
  MakeNoise noise = nullptr;  // null: a function of the seed, the weight's name, the update and the element
};

/// quantize_weight_in_forward false, Mixture of Quantization: after each update the weights in float16 that the model
/// computes with are rounded to start_bits bits, which fall by one every quantization_period updates, to target_bits.
/// The masters stay exact, so that what is rounded away is not lost.
class UpdateQuantization final : public QuantizationMethod {
 public:
  UpdateQuantization(sdk::Host host, const sdk::Params& params, UpdateRules rules = {});

  sdk::CompressionPlan plan(const sdk::ModelTable& model) override;
  /// With an offset the first weights that are rounded are those of the update after it.
  bool active(std::int64_t updates) const override { return keys_.offset == 0 || updates > keys_.offset; }
  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const override;
  void transform(const sdk::CompressedPiece& piece, std::int64_t updates, std::span<float> values) const override;
  int code_bits(std::string_view parameter, std::int64_t updates) const override;
  void encode(const sdk::CompressedPiece& piece, std::int64_t updates, const sdk::Codes& codes) const override;
  void follow(std::int64_t updates) override;
  /// The bits of a weight of the plan once so many updates are done.
  int bits_at(std::string_view weight, std::int64_t updates) const;
  std::string saved() const override;
  void load(const sdk::Document& saved) override;

 private:
  void add(sdk::CompressionPlan& plan, const sdk::ModelModule& module, const BitSchedule::Weight& bits);
  std::int64_t counted(std::int64_t updates) const;
  std::size_t index_of(std::string_view name) const;
  const BitSchedule& schedule_at(std::int64_t updates) const;
  UpdateQuantizer::How how(std::size_t weight, std::int64_t updates) const;
  void say(const std::vector<BitSchedule::Drop>& drops) const;

  sdk::Host host_;
  QuantizationKeys keys_;
  UpdateRules rules_;
  bool stochastic_ = false, verbose_ = false;
  double change_ratio_ = 0;  // 0: values are not mixed
  std::vector<BitSchedule::Weight> of_groups_;
  // Since plan():
  std::uint64_t seed_ = 0;
  std::vector<MovingWeight> weights_;
  std::vector<BitSchedule::Weight> bits_;
  std::vector<UpdateQuantizer> quantizers_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::optional<BitSchedule> schedule_;
  mutable std::optional<BitSchedule> elsewhere_;  // at the number of updates that was asked for last
};

}  // namespace capstan::compression
