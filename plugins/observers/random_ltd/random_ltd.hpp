#pragma once

#include <string>
#include <string_view>

#include "capstan/sdk/observer.hpp"
#include "kept_length.hpp"
#include "kept_tokens.hpp"
#include "token_choice.hpp"
#include "wrapped_layers.hpp"

namespace capstan::random_ltd {

/// The section data_efficiency.data_routing.random_ltd (Yao et al. 2022, "Random-LTD"): a wrapped layer computes with
/// some of the tokens of each sample, others in each layer and step, and the rest goes past it. Evaluation never comes
/// here.
class RandomLtd {
 public:
  RandomLtd(sdk::Host host, const sdk::Params& params, ChoosePositions choose);

  void event(const capstan_event& event);
  void batch(sdk::Batch& batch);
  capstan_tensor layer(sdk::LayerRun& run);
  void save(const sdk::Sink& sink) const;
  void load(const sdk::Document& saved);

 private:
  /// Of a layer's dimensions: how many samples and tokens there are.
  struct Extent {
    std::int64_t samples, tokens;
  };

  void find_layers();
  Extent extent(const at::Tensor& hidden) const;
  void warn_of_short_sequence(const sdk::LayerRun& run, std::int64_t tokens);
  at::Tensor positions(const at::Tensor& hidden, std::uint32_t place, std::int64_t tokens) const;
  at::Tensor cut_mask(const sdk::LayerRun& run, const at::Tensor& positions, std::int64_t tokens) const;
  std::int64_t layer_tokens() const;

  sdk::Host host_;
  ChoosePositions choose_;
  std::vector<std::int64_t> ids_;
  std::int64_t total_layers_;
  std::string mask_name_;  // empty: the layers take none
  bool encoder_;
  Order order_;
  KeptLength schedule_;

  WrappedLayers wrapped_;
  TokenChoice choice_;                               // of the forward under way
  std::int64_t consumed_ = 0, consumed_before_ = 0;  // layer tokens, now and after the last step
  bool ran_ = false, warned_ = false;
};

}  // namespace capstan::random_ltd
