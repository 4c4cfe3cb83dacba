#include <cmath>
#include <map>
#include <string>

#include "capstan/sdk/compression.hpp"

namespace {

namespace sdk = capstan::sdk;

/// Measures the largest magnitude of a group, then the sum of magnitudes, and rounds to multiples of a step made of
/// both.
class Grid {
 public:
  Grid(sdk::Host, const sdk::Params& params)
      : share_(params.number("share")),
        mean_share_(params.number("mean_share")),
        from_(params.integer("from")),
        answer_(params.text("answer")) {
    for (const std::string& name : params.names("groups")) {
      groups_[name] = static_cast<std::uint64_t>(params.integer("/groups/" + sdk::Params::escaped(name)));
    }
  }

  struct Answer {
    sdk::CompressionPlan plan;
    std::string instead;
    std::string json() const { return instead.empty() ? plan.json() : instead; }
  };

  Answer plan(const sdk::ModelTable& model) {
    Answer answer{{}, answer_};
    for (const sdk::ModelModule& module : model.modules) {
      for (const sdk::ModelModule::Parameter& parameter : module.parameters) {
        const auto found = groups_.find(module.full_name(parameter.name));
        if (found == groups_.end()) continue;
        sdk::CompressionPlan::Parameter& planned = answer.plan.parameters.emplace_back();
        planned.name = found->first;
        planned.groups = found->second > 0 ? found->second : static_cast<std::uint64_t>(parameter.shape[0]);
        planned.measures = {{sdk::Join::kMax, sdk::Join::kMin}, {sdk::Join::kSum}};
        answer.plan.report.push_back("test_grid: " + planned.name);
      }
    }
    return answer;
  }

  bool active(std::int64_t updates) const { return updates >= from_; }

  void measure(const sdk::CompressedPiece& piece, unsigned round, double* partials) const {
    const auto x = piece.input();
    piece.parallel_segments([&](std::size_t segment, std::size_t, std::size_t begin, std::size_t end) {
      double high = x[begin], low = x[begin], sum = 0;
      for (std::size_t i = begin; i < end; ++i) {
        high = std::max<double>(high, x[i]);
        low = std::min<double>(low, x[i]);
        sum += std::fabs(x[i]);
      }
      if (round == 0) {
        partials[2 * segment] = high;
        partials[2 * segment + 1] = low;
      } else {
        partials[segment] = sum;
      }
    });
  }

  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) const {
    const auto x = piece.input();
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      const double* numbers = piece.statistics(group, 3);
      const double mean = numbers[2] / static_cast<double>(piece.group_size());
      const auto step =
          static_cast<float>(share_ * std::max(std::fabs(numbers[0]), std::fabs(numbers[1])) + mean_share_ * mean);
      for (std::size_t i = begin; i < end; ++i) values[i] = step > 0 ? std::nearbyint(x[i] / step) * step : x[i];
    });
  }

 private:
  double share_, mean_share_;
  std::int64_t from_;
  std::string answer_;
  std::map<std::string, std::uint64_t> groups_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::compression<Grid, "test_grid">)
