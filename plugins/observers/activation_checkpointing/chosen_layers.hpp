#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::activation_checkpointing {

/// The layers of a model that are computed again, and which of them at once.
class ChosenLayers {
 public:
  struct Place {
    bool chosen = false, joins = false, stays_open = false;  // of a region, see capstan_recompute
  };

  ChosenLayers() = default;
  /// `names`: of the model's layers, in the order of forward. `patterns`: regular expressions searched in them; none:
  /// all layers are chosen. A region has `every` layers, which follow one another. Throws sdk::Error where a pattern
  /// fits no layer.
  ChosenLayers(std::vector<std::string> names, const std::vector<std::string>& patterns, std::int64_t every);

  /// The place of layer `index`; of one that the model's list lacks by its name alone.
  Place place(std::uint32_t index, std::string_view name) const;
  std::size_t count() const { return count_; }
  /// Of the layers in the model's list.
  std::size_t regions() const { return regions_; }

 private:
  static bool fits(const std::string& name, const std::vector<std::string>& patterns);

  std::vector<std::string> patterns_;
  std::vector<Place> places_;
  std::size_t count_ = 0, regions_ = 0;
};

}  // namespace capstan::activation_checkpointing
