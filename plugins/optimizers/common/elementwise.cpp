#include "plugins/optimizers/common/elementwise.hpp"

#include <algorithm>

#include "capstan/sdk/parallel.hpp"
#include "plugins/optimizers/common/convert.hpp"

namespace capstan::optimizers {
namespace {

constexpr std::size_t kUnit = 8192;             // elements that one thread takes at once
constexpr std::int64_t kUnitsPerThread = 4;     // below it another thread costs more than it gives
constexpr std::size_t kConversionBlock = 1024;  // elements: what is converted stays in the first-level cache

const void* at(const sdk::Values& values, std::size_t index) {
  return static_cast<const char*>(values.data) + index * size_of(values.dtype);
}
void* at(sdk::Values& values, std::size_t index) {
  return static_cast<char*>(values.data) + index * size_of(values.dtype);
}

bool is_fp32(const sdk::Values& values) { return values.dtype == sdk::Dtype::kFloat32; }

}  // namespace

void ElementwiseUpdate::add(const sdk::Slot& slot, std::initializer_list<std::size_t> states, BlockKernel kernel,
                            const void* numbers) {
  Work& work = work_.emplace_back();
  work.param = slot.param();
  work.grad = slot.grad();
  work.compute = slot.compute();
  work.plain = is_fp32(work.grad) && work.compute.data == nullptr;
  for (const std::size_t index : states) {
    work.states[work.state_count] = slot.state(index);
    work.plain = work.plain && is_fp32(work.states[work.state_count]);
    ++work.state_count;
  }
  work.numel = slot.numel();
  work.kernel = kernel;
  work.numbers = numbers;
  work.first_unit = units_;
  units_ += static_cast<std::int64_t>((work.numel + kUnit - 1) / kUnit);
  if (work.compute.data != nullptr) slot.mark_compute_written();
}

void ElementwiseUpdate::run() const {
  if (units_ <= static_cast<std::int64_t>(work_.size())) {  // only small slots
    for (const Work& work : work_) update(work, 0, work.numel);
  } else {
    sdk::parallel_for(0, units_, kUnitsPerThread,
                      [this](std::int64_t begin, std::int64_t end) { update_units(begin, end); });
  }
}

void ElementwiseUpdate::update_units(std::int64_t begin, std::int64_t end) const {
  auto work = std::upper_bound(work_.begin(), work_.end(), begin,
                               [](std::int64_t unit, const Work& item) { return unit < item.first_unit; });
  --work;
  for (; work != work_.end() && work->first_unit < end; ++work) {
    const auto from = static_cast<std::size_t>(std::max(begin, work->first_unit) - work->first_unit) * kUnit;
    const auto to = static_cast<std::size_t>(end - work->first_unit) * kUnit;
    update(*work, std::min(from, work->numel), std::min(to, work->numel));
  }
}

void ElementwiseUpdate::update(const Work& work, std::size_t begin, std::size_t end) {
  return work.plain ? update_plain(work, begin, end) : update_converting(work, begin, end);
}

void ElementwiseUpdate::update_plain(const Work& work, std::size_t begin, std::size_t end) {
  Block block{work.param + begin, static_cast<const float*>(work.grad.data) + begin, {}, end - begin};
  for (std::size_t s = 0; s < work.state_count; ++s) {
    block.state[s] = static_cast<float*>(work.states[s].data) + begin;
  }
  work.kernel(block, work.numbers);
}

void ElementwiseUpdate::update_converting(const Work& work, std::size_t begin, std::size_t end) {
  alignas(64) float grad[kConversionBlock];
  alignas(64) float states[kMaxStates][kConversionBlock];
  sdk::Values stored[kMaxStates];
  std::copy(work.states, work.states + kMaxStates, stored);
  sdk::Values compute = work.compute;
  for (std::size_t from = begin; from < end; from += kConversionBlock) {
    const std::size_t count = std::min(kConversionBlock, end - from);
    Block block{work.param + from, static_cast<const float*>(work.grad.data) + from, {}, count};
    if (!is_fp32(work.grad)) {
      widen(at(work.grad, from), work.grad.dtype, grad, count);
      block.grad = grad;
    }
    for (std::size_t s = 0; s < work.state_count; ++s) {
      block.state[s] = static_cast<float*>(stored[s].data) + from;
      if (is_fp32(stored[s])) continue;
      widen(at(stored[s], from), stored[s].dtype, states[s], count);
      block.state[s] = states[s];
    }
    work.kernel(block, work.numbers);
    for (std::size_t s = 0; s < work.state_count; ++s) {
      if (!is_fp32(stored[s])) narrow(states[s], at(stored[s], from), stored[s].dtype, count);
    }
    if (compute.data != nullptr) narrow(work.param + from, at(compute, from), compute.dtype, count);
  }
}

}  // namespace capstan::optimizers
