// Prodigy (Mishchenko and Defazio 2024, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", algorithm 4): Adam
// whose rate is an estimate d of the distance to the solution. The estimate is the quotient of two sums over the whole
// model, which the engine adds up over all shards: every rank has the same bits of them, at every ZeRO stage.
//
// Written once for the CPU and for GPUs, sums included.
#include <capstan/sdk/elements.hpp>

CAPSTAN_RULES

/// The factors of all slots of an update, with the estimate d from before it.
struct ProdigyNumbers {
  float grad_scale;
  float joined_decay;  // the decay that joins the gradient
  float beta1, beta2, beta3;
  float fresh1, fresh2, fresh3;  // the weights of what is new in the averages and in s

  template <class V>
  CAPSTAN_RULE V gradient(V p, V grad) const {
    return grad * grad_scale + p * joined_decay;
  }
  template <class V>
  CAPSTAN_RULE V next_s(V s, V g) const {
    return mul_add(V(beta3), s, fresh3 * g);
  }
};

/// The sums <g, p0 - p> and |s|, as the update will leave it.
struct ProdigyMeasure : ProdigyNumbers {
  static constexpr int kStates = 2;  // p0, s
  static constexpr int kMeasures = 2;

  template <class V, class Sums>
  CAPSTAN_RULE void operator()(V p, V grad, const V* state, Sums& sums) const {
    const V g = gradient(p, grad);
    sums.add(0, g, state[0] - p);
    sums.add(1, abs(next_s(state[1], g)), V(1.0f));
  }
};
CAPSTAN_RULE_KERNEL(ProdigyMeasure)

struct ProdigyRule : ProdigyNumbers {
  static constexpr int kStates = 3;  // exp_avg, exp_avg_sq, s
  float rate, eps, shrink;

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    const V g = gradient(p, grad);
    state[0] = mul_add(V(beta1), state[0], fresh1 * g);
    state[1] = mul_add(V(beta2), state[1], fresh2 * (g * g));
    state[2] = next_s(state[2], g);
    p = neg_mul_add(V(shrink), p, p);
    p = neg_mul_add(V(rate), state[0] / (sqrt(state[1]) + eps), p);
  }
};
CAPSTAN_RULE_KERNEL(ProdigyRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

CAPSTAN_RULE_NUMBERS(ProdigyNumbers)
CAPSTAN_RULE_EXPORT(ProdigyMeasure)
CAPSTAN_RULE_EXPORT(ProdigyRule)

namespace {

namespace sdk = capstan::sdk;
namespace elements = capstan::elements;

enum State : std::size_t { kExpAvg, kExpAvgSq, kS, kStart };  // in the order of plugin.toml
enum Sum : std::size_t { kNumerator, kDenominator };

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

/// The numbers of a group in an update, with the estimate d from before it.
struct Factors {
  Factors(const Numbers& numbers, double d, double d0, const sdk::Step& step) {
    const auto t = static_cast<double>(step.update_index() + 1);
    const double correction =
        numbers.corrects_bias ? std::sqrt(1 - std::pow(numbers.beta2, t)) / (1 - std::pow(numbers.beta1, t)) : 1;
    rate = d * numbers.lr * correction;
    rule = {.grad_scale = static_cast<float>(step.grad_scale()),
            .joined_decay = static_cast<float>(numbers.decouple ? 0 : numbers.weight_decay),
            .beta1 = static_cast<float>(numbers.beta1),
            .beta2 = static_cast<float>(numbers.beta2),
            .beta3 = static_cast<float>(numbers.beta3),
            .fresh1 = static_cast<float>(d * (1 - numbers.beta1)),
            .fresh2 = static_cast<float>(d * d * (1 - numbers.beta2)),
            // d / d0 instead of d: the sums would be too small for floats.
            .fresh3 = static_cast<float>(d / d0 * (numbers.safeguards ? d : rate))};
  }

  double rate;
  elements::ProdigyNumbers rule;
};

class Prodigy {
 public:
  static constexpr std::size_t kMeasuresModel = 2;

  Prodigy(const sdk::Host&, const sdk::Params& params)
      : d0_(params.number("d0")), d_(d0_), largest_(d0_), before_(d0_) {}

  void measure_model(const sdk::Slots& slots, const sdk::Step& step, elements::ElementMeasures& measures) const {
    const auto factors =
        step.each_group([&](const sdk::Group& group) { return Factors(Numbers(group), d_, d0_, step); });
    std::vector<elements::ProdigyMeasure> rules;
    for (const Factors& one : factors) rules.push_back({one.rule});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::uint32_t group = slots[i].group();
      if (factors[group].rate > 0) measures.add(i, {kStart, kS}, rules[group]);
    }
    measures.run();
  }

  void update(const sdk::Slots& slots, const sdk::Step& step, elements::ElementUpdates& updates) {
    const auto numbers = step.each_group([](const sdk::Group& group) { return Numbers(group); });
    // One update may come in several calls: the estimate moves in the first.
    if (step.update_index() != last_update_) estimate(numbers, step);
    last_update_ = step.update_index();
    if (step.model_total(kDenominator) == 0) return;  // no gradient, and none before: there is nothing to go by
    std::vector<elements::ProdigyRule> rules;
    for (const Numbers& one : numbers) rules.push_back(rule_of(one, step));
    for (const sdk::Slot slot : slots) {
      const elements::ProdigyRule& rule = rules[slot.group()];
      if (rule.rate > 0) updates.add(slot, {kExpAvg, kExpAvgSq, kS}, rule);
    }
    updates.run();
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

  /// The averages take the estimate from before the update, and eps the new one.
  elements::ProdigyRule rule_of(const Numbers& numbers, const sdk::Step& step) const {
    const Factors factors(numbers, before_, d0_, step);
    return {factors.rule, static_cast<float>(factors.rate), static_cast<float>(d_ * numbers.eps),
            static_cast<float>(numbers.decouple ? numbers.weight_decay * factors.rate : 0)};
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

  double d0_, d_, largest_, before_;  // the estimate, the largest so far, the one that the update began with
  double numerator_ = 0;
  std::int64_t last_update_ = -1;
};

}  // namespace

CAPSTAN_PLUGIN(&sdk::optimizer<elements::OnElements<Prodigy>, "Prodigy">)
#endif
