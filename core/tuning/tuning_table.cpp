#include "core/tuning/tuning_table.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <variant>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kVersion = 1;

/// splitmix64: a sequence of well mixed numbers from any seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t bound) {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<std::size_t>((z ^ (z >> 31)) % bound);
  }

 private:
  std::uint64_t state_;
};

Json numbers(const double* values, std::size_t count) {
  Json list = Json::array();
  for (std::size_t i = 0; i < count; ++i) list.push_back(values[i]);
  return list;
}

std::vector<double> numbers_of(const Json& list) {
  std::vector<double> values;
  for (const Json& value : list.as_array()) values.push_back(value.as_number());
  return values;
}

CostTerms terms_of(const Json& list) {
  const std::vector<double> values = numbers_of(list);
  if (values.size() != kCostTerms) throw std::out_of_range(std::to_string(kCostTerms) + " terms");
  CostTerms terms{};
  std::copy(values.begin(), values.end(), terms.begin());
  return terms;
}

void read_point(const Json& json, std::size_t features, TuningTable& table) {
  table.space.points.push_back(json.at("name").as_string());
  const std::vector<double> values = numbers_of(json.at("values"));
  if (values.size() != features) throw std::out_of_range("values, one a feature");
  table.space.values.insert(table.space.values.end(), values.begin(), values.end());
  SearchPoint point;
  point.stage = static_cast<int>(json.at("stage").as_integer());
  point.terms = terms_of(json.at("terms"));
  point.samples = json.at("samples").as_number();
  table.points.push_back(point);
  table.runs.push_back(numbers_of(json.at("seconds")));
  table.peaks.push_back(json.find("peak_memory") ? json.at("peak_memory").as_integer() : 0);
}

}  // namespace

double TuningTable::cost(std::size_t point) const {
  return runs[point].empty() ? kInfinity : median_of(runs[point]) / points[point].samples;
}

double TuningTable::least_cost() const {
  double least = kInfinity;
  for (std::size_t i = 0; i < points.size(); ++i) least = std::min(least, cost(i));
  return least;
}

Json TuningTable::json() const {
  Json json = Json::object();
  json["capstan_tuning_table"] = kVersion;
  json["about"] = about;
  Json& names = json["features"] = Json::array();
  for (const std::string& name : space.features) names.push_back(name);
  json["guess"] = numbers(guess.data(), kCostTerms);
  json["points"] = Json::array();
  for (std::size_t i = 0; i < points.size(); ++i) {
    Json entry = Json::object();
    entry["name"] = space.points[i];
    entry["stage"] = points[i].stage;
    entry["samples"] = points[i].samples;
    entry["values"] = numbers(space.values.data() + i * space.features.size(), space.features.size());
    entry["terms"] = numbers(points[i].terms.data(), kCostTerms);
    entry["seconds"] = numbers(runs[i].data(), runs[i].size());
    if (peaks[i] > 0) entry["peak_memory"] = peaks[i];
    json["points"].push_back(std::move(entry));
  }
  return json;
}

TuningTable TuningTable::parse(const Json& json, const std::string& name) {
  TuningTable table;
  try {
    if (json.at("capstan_tuning_table").as_integer() != kVersion) throw std::out_of_range("version 1");
    if (const Json* about = json.find("about")) table.about = about->as_string();
    for (const Json& feature : json.at("features").as_array()) table.space.features.push_back(feature.as_string());
    table.guess = terms_of(json.at("guess"));
    for (const Json& point : json.at("points").as_array()) read_point(point, table.space.features.size(), table);
  } catch (const std::out_of_range& missing) {
    throw ConfigError(name + ": is not a table of 'capstan tune --record': it lacks " + missing.what() + ".");
  } catch (const std::bad_variant_access&) {
    throw ConfigError(name + ": is not a table of 'capstan tune --record': a value is of another type.");
  }
  if (table.points.empty()) throw ConfigError(name + ": the table has no points.");
  return table;
}

Replay replay(const TuningTable& table, Tuner& tuner, std::size_t budget, std::uint64_t seed) {
  Random random(seed);
  const RunPoint run = [&](std::size_t point) -> std::optional<double> {
    const std::vector<double>& runs = table.runs[point];
    if (runs.empty()) return std::nullopt;
    return runs[random.below(runs.size())];
  };
  SearchLimits limits;
  limits.trials = budget;
  tuner.start(table.space, budget, seed);
  const SearchResult result = search(tuner, table.points, table.guess, limits, run);
  Replay found;
  found.trials = result.tried.size();
  found.excess = result.best ? table.cost(result.tried[*result.best].point) / table.least_cost() - 1 : kInfinity;
  return found;
}

}  // namespace capstan
