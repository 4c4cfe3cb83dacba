// Random-LTD with recorded positions in the place of drawn ones: the plugin's own files, but for the draw.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "random_ltd.hpp"

namespace capstan::random_ltd {
namespace {

/// Positions of one row: hexadecimal, bit p says that position p is kept.
std::vector<std::int64_t> positions_of(const std::string& mask) {
  std::vector<std::int64_t> positions;
  for (std::size_t digit = 0; digit < mask.size(); ++digit) {
    const int bits = std::stoi(mask.substr(mask.size() - 1 - digit, 1), nullptr, 16);
    for (int bit = 0; bit < 4; ++bit) {
      if ((bits >> bit) & 1) positions.push_back(static_cast<std::int64_t>(4 * digit) + bit);
    }
  }
  return positions;
}

/// A recorded run's `kept`: by step, micro-step, wrapped layer and row; empty for a step that drops nothing.
class Recording {
 public:
  explicit Recording(const sdk::Params& params) {
    for (std::size_t step = 0; step < params.size("kept"); ++step) {
      const std::string of_step = "/kept/" + std::to_string(step);
      for (std::size_t micro = 0; micro < params.size(of_step); ++micro) {
        const std::string of_micro = of_step + "/" + std::to_string(micro);
        for (std::size_t layer = 0; layer < params.size(of_micro); ++layer) {
          add(params, of_micro + "/" + std::to_string(layer), {step, micro, layer});
        }
      }
    }
  }

  at::Tensor operator()(const TokenChoice& choice) const {
    const Place place = {static_cast<std::size_t>(choice.step), static_cast<std::size_t>(choice.micro_step),
                         choice.layer};
    const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const auto& one) { return one.first == place; });
    const std::string where = "step " + std::to_string(choice.step) + ", wrapped layer " + std::to_string(choice.layer);
    if (found == rows_.end()) throw sdk::Error(where + ": the recording drops nothing");
    const std::int64_t samples = choice.samples.numel();
    at::Tensor out = at::empty({samples, choice.keep}, at::kLong);
    if (static_cast<std::int64_t>(found->second.size()) != samples)
      throw sdk::Error(where + ": other rows are recorded");
    for (std::int64_t row = 0; row < samples; ++row) {
      const std::vector<std::int64_t>& kept = found->second[static_cast<std::size_t>(row)];
      if (static_cast<std::int64_t>(kept.size()) != choice.keep) {
        throw sdk::Error(where + ": the recording keeps " + std::to_string(kept.size()) + " tokens, the schedule " +
                         std::to_string(choice.keep));
      }
      std::copy(kept.begin(), kept.end(), out.mutable_data_ptr<std::int64_t>() + row * choice.keep);
    }
    return out;
  }

 private:
  struct Place {
    std::size_t step, micro, layer;
    bool operator==(const Place&) const = default;
  };

  void add(const sdk::Params& params, const std::string& path, const Place& place) {
    std::vector<std::vector<std::int64_t>> rows;
    for (const std::string& mask : params.texts(path)) rows.push_back(positions_of(mask));
    rows_.emplace_back(place, std::move(rows));
  }

  std::vector<std::pair<Place, std::vector<std::vector<std::int64_t>>>> rows_;
};

class RecordedRandomLtd : public RandomLtd {
 public:
  RecordedRandomLtd(sdk::Host host, const sdk::Params& params) : RandomLtd(host, params, Recording(params)) {}
};

}  // namespace
}  // namespace capstan::random_ltd

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::random_ltd::RecordedRandomLtd, "recorded_random_ltd">)
