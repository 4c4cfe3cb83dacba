#include "tests/plugins/optimizers/onebit_ranks.hpp"

#include <cmath>
#include <numeric>

namespace capstan::testing {

std::size_t Problem::count() const { return std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}); }

Vector Problem::start() const {
  Vector values(count());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(initial(i));
  return values;
}

std::vector<Vector> Problem::gradients(int t, bool local) const {
  std::vector<Vector> all(ranks, Vector(count()));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count(); ++i) all[rank][i] = gradient(rank, t, i);
  }
  if (local) return all;
  Vector mean(count());
  for (const Vector& own : all) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += own[i] / ranks;
  }
  return std::vector<Vector>(ranks, mean);
}

double Problem::scale(int t, bool local) const {
  if (clip == 0) return 1;
  double squares = 0;
  for (const Vector& own : gradients(t, local)) {
    for (const double value : own) squares += value * value / ranks;
  }
  return std::min(1.0, clip / (std::sqrt(squares) + 1e-6));
}

Problem golden_problem(std::vector<std::size_t> lengths) {
  return {.ranks = 2,
          .lengths = std::move(lengths),
          .initial = [](std::size_t i) { return .1 * (static_cast<double>(i) - 7.5); },
          .gradient =
              [](std::uint32_t rank, int, std::size_t i) {
                const auto at = static_cast<double>(i);
                return rank == 0 ? std::sin(at + 1) : std::cos(at / 2);
              }};
}

namespace {

/// Between -1 and 1, a function of its arguments.
double scattered(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u ^ b * 0xC2B2AE3D27D4EB4Fu ^ c * 0x165667B19E3779F9u;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 32;
  x *= 0x94D049BB133111EBu;
  x ^= x >> 29;
  return static_cast<double>(x >> 11) / static_cast<double>(std::uint64_t{1} << 52) - 1.0;
}

}  // namespace

Problem noisy_problem(std::uint32_t ranks, std::vector<std::size_t> lengths, std::uint64_t seed) {
  return {.ranks = ranks,
          .lengths = std::move(lengths),
          .initial = [seed](std::size_t i) { return scattered(seed, i, 1); },
          .gradient =
              [seed](std::uint32_t rank, int t, std::size_t i) {
                const auto update = static_cast<std::uint64_t>(t);
                return 0.3 * scattered(seed, i, 2) + scattered(seed + 7 * (rank + 1), i, 1000 + update);
              }};
}

RankOfProblem::RankOfProblem(const Problem& problem, std::string_view plugin, std::string_view type, const Json& params,
                             Seat seat, at::Device device)
    : optimizer(plugin, type, params, seat, device), problem_(problem), rank_(seat.rank) {
  const Vector start = problem.start();
  std::size_t at = 0;
  for (const std::size_t length : problem.lengths) {
    const auto begin = start.begin() + static_cast<std::ptrdiff_t>(at);
    optimizer.add(tensor_of({begin, begin + static_cast<std::ptrdiff_t>(length)}));
    at += length;
  }
}

void RankOfProblem::update(int t) {
  const bool local = optimizer.wants_local_gradients();
  const Vector gradient = problem_.gradients(t, local)[rank_];
  std::size_t at = 0;
  for (std::size_t k = 0; k < problem_.lengths.size(); ++k) {
    const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(at);
    optimizer.slot(k).grad = tensor_of({begin, begin + static_cast<std::ptrdiff_t>(problem_.lengths[k])})
                                 .to(optimizer.slot(k).param.device());
    at += problem_.lengths[k];
  }
  optimizer.group(0)["lr"] = problem_.lr(t);
  optimizer.update(problem_.scale(t, local));
}

Vector RankOfProblem::params() const {
  Vector all;
  for (const float value : bits()) all.push_back(static_cast<double>(value));
  return all;
}

std::vector<float> RankOfProblem::bits() const {
  std::vector<float> all;
  auto& optimizer_here = const_cast<OptimizerUnderTest&>(optimizer);
  for (std::size_t k = 0; k < optimizer.size(); ++k) {
    const at::Tensor param = optimizer_here.slot(k).param.cpu();
    all.insert(all.end(), param.const_data_ptr<float>(), param.const_data_ptr<float>() + param.numel());
  }
  return all;
}

void run_ranks(const Problem& problem, std::string_view plugin, std::string_view type, const std::string& params,
               int updates, const std::function<void(RankOfProblem&, std::uint32_t rank, int t)>& seen,
               at::Device device) {
  Meeting meeting(problem.ranks);
  meeting.run([&](Seat seat) {
    RankOfProblem rank(problem, plugin, type, Json::parse(params), seat, device);
    for (int t = 1; t <= updates; ++t) {
      rank.update(t);
      seen(rank, seat.rank, t);
    }
  });
}

}  // namespace capstan::testing
