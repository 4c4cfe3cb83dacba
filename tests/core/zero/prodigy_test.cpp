// The example of an optimizer with sums over the whole model, against the paper's arithmetic written down once more.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;

constexpr std::int64_t kLargest = 100;
constexpr std::int64_t kRows = 12;

/// What the published package is told; its defaults where a test says nothing.
struct Settings {
  double decay = 0;
  bool decouple = true, correct = false, safeguard = false;
  double coefficient = 1, growth = INFINITY;
  int steps = 50;  // without a bound of the growth, later steps on this model would blow up every rounding
  const char* json = "";
};

/// Algorithm 4 in double precision, on a model of its own.
class Reference {
 public:
  explicit Reference(const Settings& settings) : settings_(settings), model_(1, kLargest) {
    model_.skips = false;
    for (const NamedTensor& parameter : model_.parameters) {
      const at::Tensor values = parameter.tensor.detach().contiguous();
      const float* data = values.const_data_ptr<float>();
      const auto count = static_cast<std::size_t>(values.numel());
      all_.push_back({std::vector<double>(data, data + count), std::vector<double>(count), std::vector<double>(count),
                      std::vector<double>(count)});
    }
  }

  void step() {
    model_.loss(test::rows_of_stream(samples_, kRows).tensors.find("x")->second).backward();
    samples_ += kRows;
    const double correction =
        settings_.correct ? std::sqrt(1 - std::pow(0.999, t_ + 1)) / (1 - std::pow(0.9, t_ + 1)) : 1;
    const double rate = d_ * correction, d = d_, beta3 = std::sqrt(0.999);
    double denominator = 0;
    numerator_ *= beta3;
    const at::NoGradGuard no_grad;
    for (std::size_t k = 0; k < all_.size(); ++k) {
      const std::vector<double> g = gradient(k);
      Moments& state = all_[k];
      const std::vector<double> p = values(k);
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double h = settings_.decouple ? g[i] : g[i] + settings_.decay * p[i];
        numerator_ += d / kD0 * rate * h * (state.start[i] - p[i]);
        state.m[i] = 0.9 * state.m[i] + d * 0.1 * h;
        state.v[i] = 0.999 * state.v[i] + d * d * 0.001 * h * h;
        state.s[i] = beta3 * state.s[i] + d / kD0 * (settings_.safeguard ? d : rate) * h;
        denominator += std::fabs(state.s[i]);
      }
    }
    const double found = settings_.coefficient * numerator_ / denominator;
    if (d_ == kD0) d_ = std::max(d_, found);
    largest_ = std::max(largest_, found);
    d_ = std::min(largest_, d_ * settings_.growth);
    for (std::size_t k = 0; k < all_.size(); ++k) move(k, rate);
    ++t_;
  }

  double d() const { return d_; }
  std::vector<double> all_values() const {
    std::vector<double> all;
    for (std::size_t k = 0; k < all_.size(); ++k) {
      const std::vector<double> more = values(k);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

 private:
  static constexpr double kD0 = 1e-6;
  struct Moments {
    std::vector<double> start, m, v, s;
  };

  std::vector<double> values(std::size_t k) const {
    const at::Tensor flat = model_.parameters[k].tensor.detach().contiguous();
    return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
  }
  std::vector<double> gradient(std::size_t k) {
    at::Tensor& gradient = at::Tensor(model_.parameters[k].tensor).mutable_grad();
    if (!gradient.defined()) return {};
    const at::Tensor flat = gradient.contiguous();
    gradient.reset();
    touched_.resize(all_.size());
    touched_[k] = true;
    return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
  }
  void move(std::size_t k, double rate) {
    if (!touched_[k]) return;
    at::Tensor to = model_.parameters[k].tensor.detach().contiguous().clone();
    auto* p = to.mutable_data_ptr<float>();
    const Moments& state = all_[k];
    for (std::size_t i = 0; i < state.m.size(); ++i) {
      const double kept = settings_.decouple ? p[i] - settings_.decay * rate * p[i] : p[i];
      p[i] = static_cast<float>(kept - rate * state.m[i] / (std::sqrt(state.v[i]) + d_ * 1e-8));
    }
    model_.parameters[k].tensor.detach().copy_(to);
  }

  Settings settings_;
  test::MixedModel model_;
  std::vector<Moments> all_;
  std::vector<bool> touched_;
  double d_ = kD0, largest_ = kD0, numerator_ = 0;
  std::int64_t samples_ = 0;
  int t_ = 0;
};

TEST(Prodigy, FollowsThePapersAlgorithmForFiftySteps) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1);
  for (const Settings& settings :
       {Settings{.steps = 15},
        Settings{.decay = 0.1,
        .correct = true,
        .growth = 1.15,
        .json = R"("weight_decay": 0.1, "use_bias_correction": true, "growth_rate": 1.15)"},
        Settings{.decay = 0.1,
        .decouple = false,
        .safeguard = true,
        .coefficient = 0.5,
        .growth = 1.15,
        .json = R"("weight_decay": 0.1, "decouple": false, "safeguard_warmup": true, "d_coef": 0.5,
                            "growth_rate": 1.15)"}}) {
    MixedRun run(R"({"train_batch_size": 12, "steps_per_print": null, "gradient_clipping": 0,
                     "optimizer": {"type": "Prodigy", "params": {)" +
                     std::string(settings.json) + "}}}",
                 Communicator::alone(), 1, kLargest);
    run.model.skips = false;
    Reference reference(settings);
    run.steps(settings.steps);
    for (int i = 0; i < settings.steps; ++i) reference.step();
    EXPECT_GT(reference.d(), 1e-5) << settings.json;  // it has found more than it began with
    const at::Tensor found = run.values().contiguous();
    const std::vector<double> expected = reference.all_values();
    double largest = 0;
    ASSERT_EQ(static_cast<std::size_t>(found.numel()), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::fabs(found.const_data_ptr<float>()[i] - expected[i]));
    }
    EXPECT_LT(largest, 1e-4) << settings.json;
  }
}

}  // namespace
}  // namespace capstan
