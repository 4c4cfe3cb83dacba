// The three optimizers against simulations of all ranks in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "tests/plugins/optimizers/onebit_ranks.hpp"

namespace capstan::testing {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01;
constexpr int kUpdates = 200;

/// All ranks at once: parameters of each after an update.
class Simulation {
 public:
  explicit Simulation(const Problem& problem) : problem(problem), p(problem.ranks, problem.start()), m(p), v(p) {
    for (auto* list : {&m, &v}) {
      for (Vector& values : *list) values.assign(problem.count(), 0.0);
    }
  }
  virtual ~Simulation() = default;
  virtual void update(int t) = 0;
  virtual double closest() const = 0;

  const Problem& problem;
  std::vector<Vector> p, m, v;

 protected:
  std::vector<Vector> scaled_gradients(int t, bool local) const {
    auto gradients = problem.gradients(t, local);
    const double scale = problem.scale(t, local);
    for (Vector& own : gradients) {
      for (double& value : own) value = static_cast<float>(value) * scale;
    }
    return gradients;
  }
  void blend(Vector& mean, const Vector& gradient) const {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = kBeta1 * mean[i] + (1 - kBeta1) * gradient[i];
  }
  void adapt(Vector& square, const Vector& gradient) const {
    for (std::size_t i = 0; i < square.size(); ++i) {
      square[i] = kBeta2 * square[i] + (1 - kBeta2) * gradient[i] * gradient[i];
    }
  }
  double direction(std::size_t rank, std::size_t i) const {
    return m[rank][i] / (std::sqrt(v[rank][i]) + kEps) + kDecay * p[rank][i];
  }
  void move(std::size_t rank, double lr) {
    for (std::size_t i = 0; i < p[rank].size(); ++i) p[rank][i] -= lr * direction(rank, i);
  }
};

/// One exchange for each parameter of the problem.
class Exchanges {
 public:
  explicit Exchanges(const Problem& problem) : problem_(problem) {
    for (const std::size_t length : problem.lengths) exchanges_.emplace_back(problem.ranks, length);
  }
  Vector run(const std::vector<Vector>& values) {
    Vector all;
    for (std::size_t k = 0, at = 0; k < exchanges_.size(); at += problem_.lengths[k++]) {
      std::vector<Vector> parts;
      for (const Vector& own : values) {
        const auto begin = own.begin() + static_cast<std::ptrdiff_t>(at);
        parts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(problem_.lengths[k]));
      }
      const Vector average = exchanges_[k].run(parts);
      all.insert(all.end(), average.begin(), average.end());
    }
    return all;
  }
  void zero_errors() {
    for (auto& exchange : exchanges_) exchange.zero_errors();
  }
  double closest() const {
    double closest = std::numeric_limits<double>::infinity();
    for (const auto& exchange : exchanges_) closest = std::min(closest, exchange.closest);
    return closest;
  }

 private:
  const Problem& problem_;
  std::vector<ReferenceExchange> exchanges_;
};

class AdamSimulation : public Simulation {
 public:
  AdamSimulation(const Problem& problem, int freeze_step)
      : Simulation(problem), freeze_step_(freeze_step), exchanges_(problem) {}

  void update(int t) override {
    const bool compressed = t > freeze_step_;
    const auto gradients = scaled_gradients(t, compressed && problem.ranks > 1);
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) {
      blend(m[rank], gradients[rank]);
      if (!compressed) adapt(v[rank], gradients[rank]);
    }
    if (compressed && problem.ranks > 1) {
      const Vector average = exchanges_.run(m);
      for (Vector& own : m) own = average;
    }
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) move(rank, problem.lr(t));
  }
  double closest() const override { return exchanges_.closest(); }

 private:
  int freeze_step_;
  Exchanges exchanges_;
};

class LambSimulation : public Simulation {
 public:
  LambSimulation(const Problem& problem, int freeze_step)
      : Simulation(problem),
        freeze_step_(freeze_step),
        exchange_(problem.ranks, problem.count()),
        mean_ratio_(problem.lengths.size()),
        last_factor_(problem.lengths.size(), 1.0),
        scaling_(problem.lengths.size()) {}

  void update(int t) override {
    if (t <= freeze_step_) {
      adapt_layers(t);
    } else {
      compress_layers(t);
    }
    for (Vector& own : p) own = p[0];
  }
  double closest() const override { return exchange_.closest; }

 private:
  template <class Body>
  void each_layer(const Body& body) {
    for (std::size_t k = 0, at = 0; k < problem.lengths.size(); at += problem.lengths[k++]) {
      body(k, at, at + problem.lengths[k]);
    }
  }

  void adapt_layers(int t) {
    const auto gradients = scaled_gradients(t, false);
    blend(m[0], gradients[0]);
    adapt(v[0], gradients[0]);
    each_layer([&](std::size_t k, std::size_t begin, std::size_t end) {
      double weights = 0, directions = 0;
      for (std::size_t i = begin; i < end; ++i) {
        weights += p[0][i] * p[0][i];
        directions += direction(0, i) * direction(0, i);
      }
      const double ratio =
          weights == 0 || directions == 0 ? 1 : std::min(std::max(std::sqrt(weights / directions), 0.01), 10.0);
      if (ratio != 1) mean_ratio_[k] = 0.9 * mean_ratio_[k] + (1 - 0.9) * ratio;
      for (std::size_t i = begin; i < end; ++i) p[0][i] -= problem.lr(t) * ratio * direction(0, i);
    });
    fresh_ = v[0];
  }

  void compress_layers(int t) {
    if (t == freeze_step_ + 1) scale_layers();
    const auto gradients = scaled_gradients(t, problem.ranks > 1);
    const Vector before = m[0];
    std::vector<Vector> flat(problem.ranks, before);
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) {
      blend(flat[rank], gradients[rank]);
      each_layer([&](std::size_t k, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) flat[rank][i] *= scaling_[k];
      });
    }
    const Vector average = problem.ranks > 1 ? exchange_.run(flat) : flat[0];
    each_layer([&](std::size_t k, std::size_t begin, std::size_t end) {
      double gradient_squares = 0, direction_squares = 0, factor = 0;
      for (std::size_t i = begin; i < end; ++i) {
        m[0][i] = average[i] / scaling_[k];
        const double gradient = (m[0][i] - kBeta1 * before[i]) / (1 - kBeta1);
        fresh_[i] = kBeta2 * fresh_[i] + (1 - kBeta2) * gradient * gradient;
        const double denominator = std::sqrt(v[0][i]) + kEps;
        factor = std::max(factor, denominator / (std::sqrt(fresh_[i]) + kEps));
        gradient_squares += std::pow(m[0][i] / denominator, 2);
        direction_squares += std::pow(direction(0, i), 2);
      }
      const double share = std::min(1.0, std::sqrt(gradient_squares / direction_squares));
      factor = factor * share + (1 - share);
      factor = std::min(std::max(factor, 0.5), 4.0);
      factor = std::min(std::max(factor, last_factor_[k] * 0.9), last_factor_[k] * 1.1);
      last_factor_[k] = factor;
      for (std::size_t i = begin; i < end; ++i) p[0][i] -= problem.lr(t) * mean_ratio_[k] * factor * direction(0, i);
    });
  }

  void scale_layers() {
    double mean = 0;
    each_layer([&](std::size_t k, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) scaling_[k] += m[0][i] * m[0][i];
      scaling_[k] = std::sqrt(scaling_[k] / static_cast<double>(end - begin));
      mean += scaling_[k] / static_cast<double>(problem.lengths.size());
    });
    for (double& size : scaling_) size = mean / size;
  }

  int freeze_step_;
  ReferenceExchange exchange_;
  Vector fresh_, mean_ratio_, last_factor_, scaling_;
};

class ZeroOneSimulation : public Simulation {
 public:
  ZeroOneSimulation(const Problem& problem, int var_freeze_step, int var_scaler, int local_scaler, int local_clipper)
      : Simulation(problem),
        var_freeze_step_(var_freeze_step),
        var_scaler_(var_scaler),
        local_scaler_(local_scaler),
        local_clipper_(local_clipper),
        exchanges_(problem),
        way_(problem.ranks, Vector(problem.count())) {}

  void update(int t) override {
    if (!frozen_) {
      adapt_or_compress(t);
      if (t > var_freeze_step_) {
        frozen_ = true;
        exchanges_.zero_errors();
      }
    } else {
      step_locally(t);
    }
  }
  double closest() const override { return exchanges_.closest(); }

 private:
  void adapt_or_compress(int t) {
    const bool full = t % var_interval_ == 0;
    auto gradients = scaled_gradients(t, !full && problem.ranks > 1);
    if (!full && problem.ranks > 1) gradients.assign(problem.ranks, exchanges_.run(gradients));
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) {
      blend(m[rank], gradients[rank]);
      if (full) adapt(v[rank], gradients[rank]);
      move(rank, problem.lr(t));
    }
    if (full && ++var_counter_ == var_scaler_) {
      var_counter_ = 0;
      var_interval_ *= 2;
    }
  }

  void step_locally(int t) {
    const auto gradients = scaled_gradients(t, problem.ranks > 1);
    rate_sum_ += problem.lr(t);
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) {
      blend(m[rank], gradients[rank]);
      for (std::size_t i = 0; i < p[rank].size(); ++i) {
        const double way = problem.lr(t) * direction(rank, i);
        p[rank][i] -= way;
        way_[rank][i] -= way;
      }
    }
    if (t % local_interval_ == 0) join();
    if (++local_counter_ == local_scaler_) {
      local_counter_ = 0;
      local_interval_ = std::min(local_clipper_, 2 * local_interval_);
    }
  }

  void join() {
    if (rate_sum_ == 0) return;
    std::vector<Vector> sent = way_;
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) {
      for (std::size_t i = 0; i < p[rank].size(); ++i) {
        p[rank][i] -= way_[rank][i];
        sent[rank][i] *= std::sqrt(v[rank][i]) + kEps;
      }
    }
    const Vector average = problem.ranks > 1 ? exchanges_.run(sent) : sent[0];
    for (std::size_t rank = 0; rank < problem.ranks; ++rank) {
      for (std::size_t i = 0; i < p[rank].size(); ++i) {
        m[rank][i] = -average[i] / rate_sum_;
        p[rank][i] += average[i] / (std::sqrt(v[rank][i]) + kEps);
        way_[rank][i] = 0;
      }
    }
    rate_sum_ = 0;
  }

  int var_freeze_step_, var_scaler_, local_scaler_, local_clipper_;
  Exchanges exchanges_;
  std::vector<Vector> way_;
  bool frozen_ = false;
  int var_interval_ = 1, var_counter_ = 0, local_interval_ = 1, local_counter_ = 0;
  double rate_sum_ = 0;
};

struct Setting {
  std::string name, plugin, type, params;
  std::function<std::unique_ptr<Simulation>(const Problem&)> simulate;
};

struct Case {
  Setting setting;
  std::string variant;
  std::function<Problem(std::uint64_t seed)> problem;
};

std::ostream& operator<<(std::ostream& out, const Case& test) { return out << test.setting.name << test.variant; }

std::vector<Case> cases() {
  const std::vector<Setting> settings = {
      {"OneBitAdam", "onebit_adam", "OneBitAdam", R"({"weight_decay": 0.01, "freeze_step": 40})",
       [](const Problem& problem) { return std::make_unique<AdamSimulation>(problem, 40); }},
      {"OneBitLamb", "onebit_lamb", "OneBitLamb", R"({"weight_decay": 0.01, "freeze_step": 40})",
       [](const Problem& problem) { return std::make_unique<LambSimulation>(problem, 40); }},
      {"ZeroOneAdam", "zero_one_adam", "ZeroOneAdam",
       R"({"weight_decay": 0.01, "var_freeze_step": 60, "var_update_scaler": 4, "local_step_scaler": 20,
           "local_step_clipper": 8})",
       [](const Problem& problem) { return std::make_unique<ZeroOneSimulation>(problem, 60, 4, 20, 8); }}};
  std::vector<Case> all;
  for (const Setting& setting : settings) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 4u}) {
      const auto add = [&](const char* variant, const std::function<void(Problem&)>& change) {
        all.push_back({setting, "Over" + std::to_string(ranks) + variant, [ranks, change](std::uint64_t seed) {
                         Problem problem = noisy_problem(ranks, {61, 1, 30}, 11 * ranks + 100 * seed);
                         change(problem);
                         return problem;
                       }});
      };
      add("", [](Problem&) {});
      add("Clipped", [](Problem& problem) { problem.clip = 1.0; });
      add("Scheduled", [](Problem& problem) {  // from 0 up, and down to 0 on the way
        problem.lr = [](int t) { return t % 60 == 0 ? 0.0 : 0.01 * std::abs(std::sin(t / 60.0 * 3.14159265358979)); };
      });
      add("Accumulated", [](Problem& problem) {
        problem.gradient = [one = problem.gradient](std::uint32_t rank, int t, std::size_t i) {
          return (one(rank, 2 * t, i) + one(rank, 2 * t + 1, i)) / 2;
        };
      });
    }
  }
  return all;
}

class Simulated : public ::testing::TestWithParam<Case> {};

TEST_P(Simulated, StaysWithTheDoublePrecisionOfAllRanksForTwoHundredUpdates) {
  const Case& test = GetParam();
  Problem problem;
  std::vector<std::vector<Vector>> expected;
  double closest = 0;
  // The first seed with which no sign hangs on rounding.
  for (std::uint64_t seed = 0; closest < 2e-6 && seed < 50; ++seed) {
    problem = test.problem(seed);
    const auto simulation = test.setting.simulate(problem);
    expected.clear();
    for (int t = 1; t <= kUpdates; ++t) {
      simulation->update(t);
      expected.push_back(simulation->p);
    }
    closest = simulation->closest();
  }
  ASSERT_GE(closest, 2e-6);
  run_ranks(problem, test.setting.plugin, test.setting.type, test.setting.params, kUpdates,
            [&](RankOfProblem& rank, std::uint32_t index, int t) {
              const Vector params = rank.params();
              for (std::size_t i = 0; i < params.size(); ++i) {
                const double wanted = expected[t - 1][index][i];
                if (std::abs(params[i] - wanted) > 2e-5 * std::max(1.0, std::abs(wanted))) {
                  ADD_FAILURE() << "rank " << index << ", update " << t << ", element " << i << ": " << params[i]
                                << ", not " << wanted;
                  return;
                }
              }
            });
}

INSTANTIATE_TEST_SUITE_P(Settings, Simulated, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.setting.name + test.param.variant; });

}  // namespace
}  // namespace capstan::testing
