// Prodigy (Mishchenko and Defazio 2024, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", algorithm 4): Adam
// whose rate is an estimate d of the distance to the solution. The estimate is the quotient of two sums over the whole
// model, which the engine adds up over all shards: every rank has the same bits of them, at every ZeRO stage.
#include <algorithm>
#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/optimizer.hpp>
#include <capstan/sdk/parallel.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace {

namespace sdk = capstan::sdk;

enum State : std::size_t { kExpAvg, kExpAvgSq, kS, kStart };  // in the order of plugin.toml
enum Sum : std::size_t { kNumerator, kDenominator };

constexpr std::int64_t kGrain = 8192;  // elements that one thread should at least have to do

struct Numbers {
  explicit Numbers(const sdk::Group& group)
      : lr(group.number("lr")),
        eps(group.number("eps")),
        weight_decay(group.number("weight_decay")),
        d_coef(group.number("d_coef")),
        growth_rate(group.number_or("growth_rate", std::numeric_limits<double>::infinity())) {
    double betas[2];
    group.read("betas", betas, 2);
    beta1 = betas[0];
    beta2 = betas[1];
    beta3 = group.number_or("beta3", std::sqrt(beta2));
    decouple = group.boolean("decouple");
    corrects_bias = group.boolean("use_bias_correction");
    safeguards = group.boolean("safeguard_warmup");
  }

  double lr, eps, weight_decay, d_coef, growth_rate, beta1, beta2, beta3;
  bool decouple, corrects_bias, safeguards;
};

/// What all slots of an update multiply by, with the estimate d from before it.
struct Factors {
  Factors(const Numbers& numbers, double d, double d0, const sdk::Step& step) : grad_scale(step.grad_scale()) {
    const auto t = static_cast<double>(step.update_index() + 1);
    const double correction =
        numbers.corrects_bias ? std::sqrt(1 - std::pow(numbers.beta2, t)) / (1 - std::pow(numbers.beta1, t)) : 1;
    rate = d * numbers.lr * correction;
    decay = numbers.weight_decay;
    joins = !numbers.decouple;
    beta1 = static_cast<float>(numbers.beta1);
    beta2 = static_cast<float>(numbers.beta2);
    beta3 = static_cast<float>(numbers.beta3);
    fresh1 = static_cast<float>(d * (1 - numbers.beta1));
    fresh2 = static_cast<float>(d * d * (1 - numbers.beta2));
    // d / d0 instead of d: the sums would be too small for floats.
    fresh3 = static_cast<float>(d / d0 * (numbers.safeguards ? d : rate));
  }

  float gradient(float value, float weight) const {
    value *= static_cast<float>(grad_scale);
    return joins ? value + static_cast<float>(decay) * weight : value;
  }
  float next_s(float s, float gradient) const { return beta3 * s + fresh3 * gradient; }

  double grad_scale, rate, decay;
  bool joins;  // the decay joins the gradient
  float beta1, beta2, beta3, fresh1, fresh2, fresh3;
};

class Prodigy {
 public:
  static constexpr std::size_t kMeasuresModel = 2;

  Prodigy(const sdk::Host&, const sdk::Params& params)
      : d0_(params.number("d0")), d_(d0_), largest_(d0_), before_(d0_) {}

  /// A slot's share of <g, p0 - p> and of the absolute sum of s, as the update will leave it.
  void measure_model(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials) const {
    const auto factors = factors_of(step, d_);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      const sdk::Slot slot = slots[k];
      const Factors& factor = factors[slot.group()];
      if (factor.rate == 0) continue;
      const sdk::Values gradients = slot.grad();
      const float *weights = slot.param(), *start = slot.floats(kStart), *s = slot.floats(kS);
      double product = 0, sum = 0;
      for (std::size_t i = 0; i < slot.numel(); ++i) {
        const float gradient = factor.gradient(sdk::value_at(gradients, i), weights[i]);
        product += static_cast<double>(gradient) * (static_cast<double>(start[i]) - static_cast<double>(weights[i]));
        sum += std::fabs(static_cast<double>(factor.next_s(s[i], gradient)));
      }
      partials[2 * k + kNumerator] = product;
      partials[2 * k + kDenominator] = sum;
    }
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto numbers = step.each_group([](const sdk::Group& group) { return Numbers(group); });
    // One update may come in several calls: the estimate moves in the first.
    if (step.update_index() != last_update_) estimate(numbers, step);
    last_update_ = step.update_index();
    if (step.model_total(kDenominator) == 0) return;  // no gradient, and none before: there is nothing to go by
    const auto factors = factors_of(step, before_);
    for (const sdk::Slot slot : slots) update(slot, factors[slot.group()], d_ * numbers[slot.group()].eps);
  }

  void save(const sdk::Sink& sink) const {
    char text[256];
    std::snprintf(text, sizeof text,
                  R"({"d": %.17g, "largest": %.17g, "before": %.17g, "numerator": %.17g, "update": %lld})", d_,
                  largest_, before_, numerator_, static_cast<long long>(last_update_));
    sink.write(text);
  }
  void load(const sdk::Document& saved) {
    d_ = saved.number("d");
    largest_ = saved.number("largest");
    before_ = saved.number("before");
    numerator_ = saved.number("numerator");
    last_update_ = saved.integer("update");
  }

 private:
  /// Groups may have the rate of all others, or 0. Throws otherwise.
  static double rate_of_all(const std::vector<Numbers>& groups) {
    double rate = 0;
    for (const Numbers& group : groups) rate = std::max(rate, group.lr);
    for (const Numbers& group : groups) {
      if (group.lr == rate || group.lr == 0) continue;
      throw sdk::Error(
          "Prodigy estimates one rate for the model: parameter groups must have the same lr, or 0, and two have " +
          std::to_string(rate) + " and " + std::to_string(group.lr) + ".");
    }
    return rate;
  }

  std::vector<Factors> factors_of(const sdk::Step& step, double d) const {
    return step.each_group([&](const sdk::Group& group) { return Factors(Numbers(group), d, d0_, step); });
  }

  void estimate(const std::vector<Numbers>& groups, const sdk::Step& step) {
    before_ = d_;
    const Numbers& numbers = groups.front();
    Numbers all = numbers;
    all.lr = rate_of_all(groups);
    const double denominator = step.model_total(kDenominator);
    if (all.lr == 0 || denominator == 0) return;
    const double rate = Factors(all, d_, d0_, step).rate;
    numerator_ = numbers.beta3 * numerator_ + d_ / d0_ * rate * step.model_total(kNumerator);
    const double found = numbers.d_coef * numerator_ / denominator;
    if (d_ == d0_) d_ = std::max(d_, found);
    largest_ = std::max(largest_, found);
    d_ = std::min(largest_, d_ * numbers.growth_rate);
  }

  /// `eps`: times the new estimate.
  static void update(const sdk::Slot& slot, const Factors& factor, double eps) {
    if (factor.rate == 0) return;
    const sdk::Values gradients = slot.grad();
    float *weights = slot.param(), *means = slot.floats(kExpAvg), *squares = slot.floats(kExpAvgSq);
    float* s = slot.floats(kS);
    const auto rate = static_cast<float>(factor.rate), added = static_cast<float>(eps);
    const auto shrink = static_cast<float>(factor.joins ? 0 : factor.decay * factor.rate);
    sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const float gradient = factor.gradient(sdk::value_at(gradients, i), weights[i]);
        means[i] = factor.beta1 * means[i] + factor.fresh1 * gradient;
        squares[i] = factor.beta2 * squares[i] + factor.fresh2 * gradient * gradient;
        s[i] = factor.next_s(s[i], gradient);
        weights[i] -= shrink * weights[i];
        weights[i] -= rate * (means[i] / (std::sqrt(squares[i]) + added));
      }
    });
  }

  double d0_, d_, largest_, before_;  // the estimate, the largest so far, the one that the update began with
  double numerator_ = 0;
  std::int64_t last_update_ = -1;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Prodigy, "Prodigy">)
