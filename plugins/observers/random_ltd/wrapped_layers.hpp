#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace capstan::random_ltd {

/// The layers of a model that drop tokens, in the order of forward.
class WrappedLayers {
 public:
  WrappedLayers() = default;
  /// `ids`, in ascending order, belong to the first layer that is left and has the id as a whole component of its name:
  /// 1 is "blocks.1" and not "blocks.10". Throws sdk::Error where an id finds none.
  WrappedLayers(const std::vector<std::string>& names, std::vector<std::int64_t> ids);

  /// The place of a layer of the model among those that drop tokens, or none.
  std::optional<std::uint32_t> place(std::uint32_t layer) const {
    return layer < places_.size() ? places_[layer] : std::nullopt;
  }
  std::int64_t count() const { return count_; }
  /// "'blocks.1', 'blocks.2'"
  const std::string& listed() const { return listed_; }

 private:
  std::vector<std::optional<std::uint32_t>> places_;
  std::uint32_t count_ = 0;
  std::string listed_;
};

}  // namespace capstan::random_ltd
