#include "template_plugin.hpp"

#include <algorithm>
#include <capstan/sdk/tuner.hpp>
#include <numeric>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : curiosity_(params.number("curiosity")) {}

  void start(const sdk::TuningSpace& space) {
    left_.resize(space.points());
    std::iota(left_.begin(), left_.end(), std::size_t{0});
    random_.seed(space.seed());
  }

  std::vector<std::size_t> ask(std::span<const double> predictions, std::size_t most) {
    std::vector<std::size_t> chosen;
    while (chosen.size() < most && !left_.empty()) {
      chosen.push_back(template_plugin_choice(left_, predictions, curiosity_, random_));
      left_.erase(std::find(left_.begin(), left_.end(), chosen.back()));
    }
    return chosen;
  }

  // What was measured is in the host's predictions already.
  void tell(std::size_t, std::optional<double>) {}

 private:
  double curiosity_;
  std::vector<std::size_t> left_;
  std::mt19937_64 random_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::tuner<TemplatePlugin, "TemplatePlugin">)
