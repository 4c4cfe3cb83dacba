#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/compressed_all_reduce.hpp"

namespace capstan::optimizers {

/// Which slots share one compressed buffer, and where in it each stands.
class Buckets {
 public:
  enum class Each {
    kParameter,  // one buffer a parameter; one a group where the model computes in 16 bits
    kModel       // one buffer for all
  };

  /// Slots for which `takes_part` is false stay outside.
  Buckets(Device& device, const sdk::Slots& slots, const sdk::Collectives& collectives, Each each,
          CompressedAllReduce::Over over, const std::function<bool(const sdk::Slot&)>& takes_part);

  bool has(std::size_t slot) const { return places_[slot].takes_part; }
  std::size_t buffer(std::size_t slot) const { return places_[slot].buffer; }
  std::uint32_t group_of(std::size_t buffer) const { return groups_[buffer]; }  // the group of its first slot
  std::size_t count() const { return exchange_->buffers(); }
  /// Where a slot's elements begin in the worker's errors.
  std::size_t error_offset(std::size_t slot) const {
    return exchange_->offset(places_[slot].buffer) + places_[slot].begin;
  }
  /// The average of a slot's whole parameter, after an exchange.
  void average(std::size_t slot, std::size_t count, float* out) const {
    exchange_->average(places_[slot].buffer, places_[slot].begin, count, out);
  }
  CompressedAllReduce& exchange() { return *exchange_; }

  /// Throws unless the slots are those that this was made for.
  void check(const sdk::Slots& slots) const;
  /// {"world_size":4,"lengths":[...]}: what errors of a checkpoint must match.
  const std::string& layout() const { return layout_; }

 private:
  struct Place {
    bool takes_part = false;
    std::size_t buffer = 0, begin = 0;
    std::size_t numel = 0;
  };

  std::vector<Place> places_;
  std::vector<std::uint32_t> groups_;
  std::optional<CompressedAllReduce> exchange_;
  std::string layout_;
};

/// Momenta of whole parameters: the optimizer's own state, or, where a rank owns only parts, buffers that are put
/// together from all ranks' parts once and kept up to date from then on.
class WholeMomenta {
 public:
  /// `state`: of the momentum, in the manifest. `device` must live as long.
  WholeMomenta(Device& device, std::size_t state) : device_(device), state_(state) {}

  /// Whether some rank owns only a part of some parameter. Asks all ranks once.
  bool sharded(const sdk::Slots& slots, const sdk::Collectives& collectives);
  /// Before a step that uses whole(). Every rank.
  void gather(const sdk::Slots& slots, const sdk::Collectives& collectives);
  float* whole(const sdk::Slots& slots, std::size_t slot);
  /// Takes this rank's part of what stands in whole() over into the state.
  void keep(const sdk::Slots& slots, std::size_t slot);
  /// The states were changed from outside.
  void forget() { gathered_ = false; }

 private:
  Device& device_;
  std::size_t state_;
  bool asked_ = false, sharded_ = false, gathered_ = false;
  sdk::Array<float> values_;
  std::vector<std::size_t> offsets_;
};

/// Group parameter "exp_avg_mask": zeros where a momentum must stay 0, because one bit cannot say so.
class Masks {
 public:
  explicit Masks(Device& device) : device_(device) {}

  /// Multiplies the momentum of a whole parameter by its mask, if its group has one: a list of 0 and 1, one for each
  /// element or one for each row of the parameter.
  void apply(const sdk::Slot& slot, const sdk::Step& step, float* momentum);

 private:
  struct Mask {
    sdk::Array<std::uint8_t> keep;  // empty: the slot has no mask
    std::size_t run = 1;            // elements that one byte of the mask is for
  };
  const Mask& find(const sdk::Slot& slot, const sdk::Step& step);

  Device& device_;
  std::map<std::string, Mask, std::less<>> masks_;
};

}  // namespace capstan::optimizers
