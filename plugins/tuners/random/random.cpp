#include <algorithm>
#include <numeric>
#include <random>

#include "capstan/sdk/tuner.hpp"

namespace capstan::tuners {
namespace {

class RandomSearch {
 public:
  RandomSearch(const sdk::Host&, const sdk::Params&) {}

  void start(const sdk::TuningSpace& space) {
    order_.resize(space.points());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::mt19937_64 random(space.seed());
    // std::shuffle may differ from one standard library to the next.
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
  }

  std::vector<std::size_t> ask(std::span<const double>, std::size_t most) {
    std::vector<std::size_t> chosen;
    while (chosen.size() < most && next_ < order_.size()) chosen.push_back(order_[next_++]);
    return chosen;
  }

  void tell(std::size_t, std::optional<double>) {}

  void save(const sdk::Sink& sink) const { sink.write("{\"next\": " + std::to_string(next_) + "}"); }
  void load(const sdk::Document& saved) { next_ = static_cast<std::size_t>(saved.integer("next")); }

 private:
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;
};

}  // namespace
}  // namespace capstan::tuners

CAPSTAN_PLUGIN(&capstan::sdk::tuner<capstan::tuners::RandomSearch, "random">)
