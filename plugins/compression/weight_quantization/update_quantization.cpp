#include "update_quantization.hpp"

#include <algorithm>
#include <cmath>

#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/random.hpp"

namespace capstan::compression {
namespace {

constexpr std::int64_t kMostBits = 32;

/// Four numbers of 32 random bits for four elements.
Noise keyed_noise(const std::vector<MovingWeight>& weights, std::size_t index, std::int64_t updates,
                  std::uint64_t seed) {
  const sdk::RandomStream numbers(seed, "rounding of " + weights[index].name);
  return [numbers, updates](std::int64_t first, std::span<float> out) {
    std::array<std::uint64_t, 2> words{};
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto element = static_cast<std::uint64_t>(first) + i;
      if (i == 0 || element % 4 == 0) {
        words = numbers.words(static_cast<std::uint64_t>(updates), static_cast<std::uint32_t>(element >> 34),
                              static_cast<std::uint32_t>(element >> 2));
      }
      const auto word = static_cast<std::uint32_t>(words[element / 2 % 2] >> (element % 2 * 32));
      out[i] = static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    }
  };
}

std::string bits_and_period(const BitSchedule::Weight& bits) {
  std::string text = bits_text(bits.start_bits);
  if (bits.start_bits == bits.target_bits) return text + " in the update";
  return std::to_string(bits.start_bits) + " to " + bits_text(bits.target_bits) + " in the update, one fewer every " +
         (bits.period <= 1 ? "update" : std::to_string(bits.period) + " updates");
}

}  // namespace

UpdateQuantization::UpdateQuantization(sdk::Host host, const sdk::Params& params, UpdateRules rules)
    : host_(host), keys_(params), rules_(std::move(rules)) {
  stochastic_ = shared_text(params, "rounding", "nearest") == "stochastic";
  verbose_ = shared_integer(params, "quantize_verbose", 0) != 0;
  if (!rules_.noise) rules_.noise = &keyed_noise;
  if (shared_integer(params, "fp16_mixed_quantize/enabled", 0) != 0) {
    const std::string ratio = "/shared_parameters/fp16_mixed_quantize/quantize_change_ratio";
    change_ratio_ = params.has(ratio) ? params.number(ratio) : 0.001;
    require(change_ratio_ > 0, kWeightSection + ".shared_parameters.fp16_mixed_quantize.quantize_change_ratio",
            "must be above 0: nothing would ever be quantised.");
  }
  for (const GroupScope& scope : keys_.scopes) {
    const std::string at = scope.where + ".params.";
    const std::int64_t start = QuantizationKeys::of_group(params, scope, "start_bits");
    const std::int64_t target = QuantizationKeys::of_group(params, scope, "target_bits");
    const std::int64_t period = QuantizationKeys::of_group(params, scope, "quantization_period", 1);
    require(target >= 1 && target <= kMostBits, at + "target_bits",
            "must be 1 to 32, got " + std::to_string(target) + ".");
    require(start <= kMostBits, at + "start_bits", "must be at most 32, got " + std::to_string(start) + ".");
    require(start >= target, at + "start_bits",
            std::to_string(start) + " is below target_bits, " + std::to_string(target) + ".");
    require(period >= 0, at + "quantization_period", "must be at least 0, got " + std::to_string(period) + ".");
    require(target > 2 || (keys_.symmetric && !stochastic_), at + "target_bits",
            std::to_string(target) + " bits need quantization_type \"symmetric\" and rounding \"nearest\".");
    of_groups_.push_back({static_cast<int>(start), static_cast<int>(target), period});
  }
}

sdk::CompressionPlan UpdateQuantization::plan(const sdk::ModelTable& model) {
  const auto [chosen, of] = choose_modules(model, keys_.scopes);
  seed_ = model.seed;
  sdk::CompressionPlan plan;
  sdk::ConfigMistakes mistakes;
  plan.warnings = chosen.warnings;
  // In the model's order, whatever the order of the groups: the share of the mixture follows it.
  for (const sdk::ModelModule& module : model.modules) {
    for (std::size_t i = 0; i < keys_.scopes.size(); ++i) {
      const auto& modules = chosen.of_group[i];
      if (std::find(modules.begin(), modules.end(), &module) == modules.end()) continue;
      mistakes.gather([&] { add(plan, module, of_groups_[i]); });
    }
  }
  mistakes.throw_if_any();
  for (std::size_t i = 0; i < keys_.scopes.size(); ++i) {
    plan.report.push_back(
        report_line("weight_quantization", keys_.scopes[i], chosen.of_group[i], of, bits_and_period(of_groups_[i])));
  }
  schedule_.emplace(bits_, change_ratio_, rules_.after);
  return plan;
}

void UpdateQuantization::add(sdk::CompressionPlan& plan, const sdk::ModelModule& module,
                             const BitSchedule::Weight& bits) {
  const std::int64_t numel = weight_numel(module);
  check_groups(module, static_cast<std::uint64_t>(numel), keys_.groups);
  const UpdateQuantizer& quantizer = quantizers_.emplace_back(keys_.symmetric, keys_.half_scales, bits.target_bits);
  sdk::CompressionPlan::Parameter& parameter = plan.parameters.emplace_back();
  parameter.name = module.full_name("weight");
  parameter.groups = keys_.groups;
  parameter.measures = quantizer.measures();
  parameter.bits = bits.target_bits <= kMostCodeBits ? std::min(bits.start_bits, kMostCodeBits) : 0;
  parameter.zero_points = !keys_.symmetric;
  index_.emplace(parameter.name, weights_.size());
  weights_.push_back({parameter.name, numel});
  bits_.push_back(bits);
}

std::size_t UpdateQuantization::index_of(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  throw sdk::Error("parameter '" + std::string(name) + "' is not in the plan of weight_quantization.");
}

/// The updates that the technique has been on for.
std::int64_t UpdateQuantization::counted(std::int64_t updates) const {
  return std::max<std::int64_t>(updates - keys_.offset, 0) + (active(updates) ? rules_.before_first : 0);
}

/// The schedule that goes with that number of updates: the run's own, or one that no curvature has changed.
const BitSchedule& UpdateQuantization::schedule_at(std::int64_t updates) const {
  const std::int64_t wanted = counted(updates);
  if (schedule_->state().updates == wanted) return *schedule_;
  if (!elsewhere_ || elsewhere_->state().updates > wanted) elsewhere_.emplace(bits_, change_ratio_, rules_.after);
  elsewhere_->advance_to(wanted);
  return *elsewhere_;
}

int UpdateQuantization::bits_at(std::string_view weight, std::int64_t updates) const {
  return schedule_at(updates).bits(index_of(weight));
}

UpdateQuantizer::How UpdateQuantization::how(std::size_t weight, std::int64_t updates) const {
  const BitSchedule& schedule = schedule_at(updates);
  UpdateQuantizer::How made{schedule.bits(weight), schedule.share(weight), {}};
  if (stochastic_) made.noise = rules_.noise(weights_, weight, counted(updates), seed_);
  return made;
}

void UpdateQuantization::follow(std::int64_t updates) {
  const std::int64_t wanted = counted(updates);
  if (wanted < schedule_->state().updates) schedule_.emplace(bits_, change_ratio_, rules_.after);
  if (wanted > schedule_->state().updates + 1) schedule_->advance_to(wanted - 1);
  if (wanted > schedule_->state().updates) {
    say(schedule_->advance([this](std::size_t weight) {
      const std::optional<double> eigenvalue = host_.told("eigenvalue of " + weights_[weight].name);
      return eigenvalue ? 1 + static_cast<std::int64_t>(std::floor(4 * *eigenvalue)) : 1;
    }));
  }
  host_.tell("bits that weights have still to lose", static_cast<double>(schedule_->bits_to_fall()));
}

void UpdateQuantization::say(const std::vector<BitSchedule::Drop>& drops) const {
  if (!verbose_ || host_.rank() > 0) return;
  for (const BitSchedule::Drop& drop : drops) {
    const bool last = drop.bits == bits_[drop.weight].target_bits;
    host_.info("weight_quantization: " + weights_[drop.weight].name + " (" + std::to_string(drop.weight) + ") has " +
               bits_text(drop.bits) + " from update " + std::to_string(schedule_->state().updates) + " on, " +
               (last ? "its last" : "the next drop is at " + std::to_string(drop.next)) + ".");
  }
}

void UpdateQuantization::measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const {
  quantizers_[index_of(piece.name())].measure(piece, round, partials);
}

void UpdateQuantization::transform(const sdk::CompressedPiece& piece, std::int64_t updates,
                                   std::span<float> values) const {
  const std::size_t weight = index_of(piece.name());
  quantizers_[weight].transform(piece, how(weight, updates), values);
}

int UpdateQuantization::code_bits(std::string_view parameter, std::int64_t updates) const {
  const auto found = index_.find(parameter);
  if (found == index_.end()) return 0;
  const int bits = bits_at(parameter, updates);
  return schedule_at(updates).share(found->second) <= 0 && bits <= kMostCodeBits ? bits : 0;
}

void UpdateQuantization::encode(const sdk::CompressedPiece& piece, std::int64_t updates,
                                const sdk::Codes& codes) const {
  const std::size_t weight = index_of(piece.name());
  quantizers_[weight].encode(piece, how(weight, updates), codes);
}

std::string UpdateQuantization::saved() const {
  const BitSchedule::State& state = schedule_->state();
  const bool dropped = state.dropped != SIZE_MAX;
  std::string text = "{\"updates\": " + std::to_string(state.updates) + ", \"since\": " + std::to_string(state.since) +
                     ", \"since_before\": " + std::to_string(state.since_before) + ", \"dropped\": " +
                     (dropped ? sdk::CompressionPlan::quoted(weights_[state.dropped].name) : "null") +
                     ", \"weights\": {";
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    text += (i == 0 ? "" : ", ") + sdk::CompressionPlan::quoted(weights_[i].name) + ": [" +
            std::to_string(state.bits[i]) + ", " + std::to_string(state.next[i]) + "]";
  }
  return text + "}}";
}

void UpdateQuantization::load(const sdk::Document& saved) {
  if (!saved.has("updates")) return;  // of a run that quantised in forward
  BitSchedule::State state = BitSchedule(bits_, change_ratio_, rules_.after).state();
  state.updates = saved.integer("updates");
  state.since = saved.integer("since");
  state.since_before = saved.integer("since_before");
  if (saved.has("dropped")) {
    const auto found = index_.find(saved.text("dropped"));
    if (found != index_.end()) state.dropped = found->second;
  }
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const std::string at = "/weights/" + sdk::Document::escaped(weights_[i].name);
    if (!saved.has(at)) continue;
    const std::vector<double> numbers = saved.numbers(at);
    // Of a run with other bits those are taken that this one may have.
    state.bits[i] = std::clamp(static_cast<int>(numbers.at(0)), bits_[i].target_bits, bits_[i].start_bits);
    state.next[i] = static_cast<std::int64_t>(numbers.at(1));
  }
  schedule_->set_state(std::move(state));
}

}  // namespace capstan::compression
