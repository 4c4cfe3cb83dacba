#include <algorithm>

#include "capstan/sdk/tuner.hpp"

namespace capstan::tuners {
namespace {

class GridSearch {
 public:
  GridSearch(const sdk::Host&, const sdk::Params&) {}

  void start(const sdk::TuningSpace& space) { points_ = space.points(); }

  std::vector<std::size_t> ask(std::span<const double>, std::size_t most) {
    std::vector<std::size_t> chosen;
    while (chosen.size() < most && next_ < points_) chosen.push_back(next_++);
    return chosen;
  }

  void tell(std::size_t, std::optional<double>) {}

  void save(const sdk::Sink& sink) const { sink.write("{\"next\": " + std::to_string(next_) + "}"); }
  void load(const sdk::Document& saved) { next_ = static_cast<std::size_t>(saved.integer("next")); }

 private:
  std::size_t points_ = 0, next_ = 0;
};

}  // namespace
}  // namespace capstan::tuners

CAPSTAN_PLUGIN(&capstan::sdk::tuner<capstan::tuners::GridSearch, "gridsearch">)
