#include "plugins/optimizers/onebit/buckets.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace capstan::optimizers {
namespace {

/// Groups that the model computes in 16 bits: their master values are one tensor to the exchange.
std::set<std::uint32_t> groups_of_16_bits(const Device& device, const sdk::Slots& slots) {
  std::set<std::uint32_t> groups;
  for (const sdk::Slot slot : slots) {
    if (slot.compute().data != nullptr || device.grad(slot).type != ElementType::kFloat32) groups.insert(slot.group());
  }
  return groups;
}

/// As JSON is written without spaces: it is compared as text with what comes back from a checkpoint.
std::string layout_text(std::size_t world_size, const std::vector<std::size_t>& lengths) {
  std::string text = "{\"world_size\":" + std::to_string(world_size) + ",\"lengths\":[";
  for (std::size_t i = 0; i < lengths.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(lengths[i]);
  return text + "]}";
}

}  // namespace

Buckets::Buckets(Device& device, const sdk::Slots& slots, const sdk::Collectives& collectives, Each each,
                 CompressedAllReduce::Over over, const std::function<bool(const sdk::Slot&)>& takes_part)
    : places_(slots.size()) {
  std::vector<std::size_t> order(slots.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return slots[a].group() < slots[b].group(); });
  const auto flat = groups_of_16_bits(device, slots);
  std::vector<std::size_t> lengths;
  for (const std::size_t index : order) {
    const sdk::Slot slot = slots[index];
    Place& place = places_[index];
    place.numel = static_cast<std::size_t>(slot.full_numel());
    place.takes_part = takes_part(slot);
    if (!place.takes_part) continue;
    const bool joins =
        !lengths.empty() && (each == Each::kModel || (flat.contains(slot.group()) && groups_.back() == slot.group()));
    if (!joins) {
      lengths.push_back(0);
      groups_.push_back(slot.group());
    }
    place.buffer = lengths.size() - 1;
    place.begin = lengths.back();
    lengths.back() += place.numel;
  }
  exchange_.emplace(device, collectives.rank(), collectives.world_size(), lengths, over);
  layout_ = layout_text(collectives.world_size(), lengths);
}

void Buckets::check(const sdk::Slots& slots) const {
  bool same = slots.size() == places_.size();
  for (std::size_t i = 0; same && i < slots.size(); ++i) same = slots[i].full_numel() == places_[i].numel;
  if (!same) {
    throw sdk::Error("gets other parameters than at its first compressed update (" + std::to_string(slots.size()) +
                     " now, " + std::to_string(places_.size()) +
                     " then). With own_communication every update must have all of them.");
  }
}

bool WholeMomenta::sharded(const sdk::Slots& slots, const sdk::Collectives& collectives) {
  if (asked_) return sharded_;
  float parts = 0;
  for (const sdk::Slot slot : slots) parts += slot.numel() != slot.full_numel() ? 1.0f : 0.0f;
  collectives.all_reduce_sum(std::span<float>(&parts, 1));
  asked_ = true;
  sharded_ = parts > 0;
  return sharded_;
}

void WholeMomenta::gather(const sdk::Slots& slots, const sdk::Collectives& collectives) {
  if (!sharded(slots, collectives) || gathered_) return;
  offsets_.clear();
  std::size_t total = 0;
  for (const sdk::Slot slot : slots) {
    offsets_.push_back(total);
    total += static_cast<std::size_t>(slot.full_numel());
  }
  device_.grow(values_, total);
  device_.kernels().fill(values_.data(), total, 0.0f);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const sdk::Slot slot = slots[i];
    if (slot.numel() > 0) {
      device_.kernels().copy(device_.floats(slot, state_), slot.numel(), whole(slots, i) + slot.offset());
    }
  }
  // Each element has one owner, and the zeros of all others change nothing.
  collectives.on(device_.place()).all_reduce_sum(std::span<float>(values_.data(), total));
  gathered_ = true;
}

float* WholeMomenta::whole(const sdk::Slots& slots, std::size_t slot) {
  return sharded_ ? values_.data() + offsets_[slot] : device_.floats(slots[slot], state_);
}

void WholeMomenta::keep(const sdk::Slots& slots, std::size_t index) {
  const sdk::Slot slot = slots[index];
  if (sharded_ && slot.numel() > 0) {
    device_.kernels().copy(whole(slots, index) + slot.offset(), slot.numel(), device_.floats(slot, state_));
  }
}

const Masks::Mask& Masks::find(const sdk::Slot& slot, const sdk::Step& step) {
  const auto found = masks_.find(slot.name());
  if (found != masks_.end()) return found->second;
  Mask& mask = masks_[std::string(slot.name())];
  const sdk::Group group = step.group(slot.group());
  if (group.is_empty("exp_avg_mask")) return mask;
  const auto numel = static_cast<std::size_t>(slot.full_numel());
  const std::size_t rows = slot.full_shape().empty() ? 1 : static_cast<std::size_t>(slot.full_shape()[0]);
  const std::vector<double> values = group.numbers("exp_avg_mask", {numel, rows});
  if (values.empty() && numel > 0) {
    slot.fail("exp_avg_mask: must have one number for each of its " + std::to_string(numel) +
              " elements or for each of its " + std::to_string(rows) + " rows.");
  }
  for (const double value : values) {
    if (value != 0 && value != 1)
      slot.fail("exp_avg_mask: holds " + std::to_string(value) + "; it is made of 0 and 1.");
  }
  const std::vector<std::uint8_t> keep(values.begin(), values.end());
  mask.keep = device_.array<std::uint8_t>(keep.size());
  device_.kernels().upload(keep.data(), keep.size(), mask.keep.data());
  mask.run = numel / std::max<std::size_t>(keep.size(), 1);
  return mask;
}

void Masks::apply(const sdk::Slot& slot, const sdk::Step& step, float* momentum) {
  const Mask& mask = find(slot, step);
  if (mask.keep.size() == 0) return;
  device_.kernels().mask(mask.keep.data(), mask.run, mask.keep.size() * mask.run, momentum);
}

}  // namespace capstan::optimizers
