#include <ATen/ops/randperm.h>

#include <algorithm>
#include <string>
#include <vector>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/observer.hpp"

namespace capstan::probes {

/// Random layerwise token dropping (Yao et al. 2022): the chosen layers see a random part of the tokens, in their
/// order; the others pass by.
class TokenDrop {
 public:
  TokenDrop(sdk::Host, const sdk::Params& params) : keep_(params.number("keep")) {
    for (std::size_t i = 0; i < params.size("layers"); ++i) {
      layers_.push_back(params.text("/layers/" + std::to_string(i)));
    }
  }

  capstan_tensor layer(sdk::LayerRun& run) {
    const bool chosen = std::find(layers_.begin(), layers_.end(), run.name()) != layers_.end();
    if (!training_ || !chosen) return run.run(run.hidden());
    const at::Tensor& all = sdk::borrow(run.hidden());
    const auto kept = static_cast<std::int64_t>(static_cast<double>(all.size(1)) * keep_);
    const at::Tensor places = std::get<0>(at::randperm(all.size(1), all.device()).narrow(0, 0, kept).sort());
    const at::Tensor some = all.index_select(1, places);
    return sdk::give(all.index_copy(1, places, sdk::take(run.run(sdk::lend(some)))));
  }

  void event(const capstan_event& event) {
    if (event.kind == CAPSTAN_EVENT_EVAL_BEGIN) training_ = false;
    if (event.kind == CAPSTAN_EVENT_EVAL_END) training_ = true;
  }

 private:
  double keep_;
  std::vector<std::string> layers_;
  bool training_ = true;
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::probes::TokenDrop, "TokenDrop">)
