// Points in their order, and every way to get it wrong.
#include "capstan/sdk/tuner.hpp"

#include <atomic>

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

std::atomic<int> instances;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) : instance_(++instances) { create_badly(params); }

  void start(const sdk::TuningSpace& space) { points_ = space.points(); }

  std::vector<std::size_t> ask(std::span<const double>, std::size_t most) {
    leak_in_call();
    std::vector<std::size_t> chosen;
    while (chosen.size() < most && next_ < points_) {
      const std::size_t point = next_++;
      chosen.push_back(breaks("repeats") ? (point + static_cast<std::size_t>(instance_)) % points_ : point);
    }
    if (breaks("points") && next_ > 5 && !chosen.empty()) chosen.back() = 2;
    if (breaks("points_outside") && !chosen.empty()) chosen.back() = points_;
    return chosen;
  }

  void tell(std::size_t, std::optional<double> cost) {
    if (breaks("failures") && !cost) throw sdk::Error("a trial has failed");
  }

  void save(const sdk::Sink& sink) { sink.write("{\"next\": " + std::to_string(next_) + "}"); }
  void load(const sdk::Document& saved) {
    if (!breaks("resume")) next_ = static_cast<std::size_t>(saved.integer("next"));
  }

 private:
  int instance_;
  std::size_t points_ = 0, next_ = 0;
};

constexpr capstan_component kBad = with_raw_create<sdk::SizedTuner<Bad>>(sdk::tuner<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
