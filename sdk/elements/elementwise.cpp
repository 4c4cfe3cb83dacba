#include "capstan/sdk/elements/elementwise.hpp"

#include <algorithm>
#include <utility>

#include "capstan/sdk/elements/convert.hpp"
#include "capstan/sdk/parallel.hpp"

namespace capstan::elements {
namespace {

constexpr std::size_t kUnit = 8192;                 // elements that one thread takes at once
constexpr std::int64_t kUnitsPerThread = 4;         // below it another thread costs more than it gives
constexpr std::size_t kStreamedElements = 1 << 20;  // a copy that large has left the caches before it is read
constexpr std::size_t kConversionBlock = 1024;      // elements: what is converted stays in the first-level cache

void* at(const sdk::Values& values, std::size_t index) {
  return static_cast<char*>(values.data) + index * size_of(values.dtype);
}

bool is_bf16(const sdk::Values& values) { return values.dtype == sdk::Dtype::kBFloat16; }
bool is_fp32(const sdk::Values& values) { return values.dtype == sdk::Dtype::kFloat32; }

}  // namespace

std::vector<ElementwiseUpdate::Work>& ElementwiseUpdate::kept() {
  thread_local std::vector<Work> kept;
  return kept;
}

ElementwiseUpdate::ElementwiseUpdate(std::size_t slot_count) : work_(std::exchange(kept(), {})) {
  work_.reserve(slot_count);
}

ElementwiseUpdate::~ElementwiseUpdate() {
  work_.clear();
  kept() = std::move(work_);
}

void ElementwiseUpdate::add(const sdk::Slot& slot, std::initializer_list<std::size_t> states, BlockKernel kernel,
                            const void* numbers) {
  Work& work = work_.emplace_back();
  work.param = slot.param();
  work.grad = slot.grad();
  work.compute = slot.compute();
  work.plain = (is_fp32(work.grad) || is_bf16(work.grad)) && (work.compute.data == nullptr || is_bf16(work.compute));
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
    for (const Work& work : work_) run(work, 0, work.numel);
  } else {
    sdk::parallel_for(0, units_, kUnitsPerThread,
                      [this](std::int64_t begin, std::int64_t end) { run_units(begin, end); });
  }
}

void ElementwiseUpdate::measure(std::span<double> partials, std::size_t measures) const {
  std::vector<double> sums(static_cast<std::size_t>(units_) * measures);
  sdk::parallel_for(0, units_, kUnitsPerThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const Work& work = *work_of(unit);
      const auto from = static_cast<std::size_t>(unit - work.first_unit) * kUnit;
      run(work, from, std::min(from + kUnit, work.numel), &sums[static_cast<std::size_t>(unit) * measures]);
    }
  });
  std::fill(partials.begin(), partials.end(), 0.0);
  for (std::size_t unit = 0; unit < static_cast<std::size_t>(units_); ++unit) {
    const auto slot = static_cast<std::size_t>(work_of(static_cast<std::int64_t>(unit)) - work_.begin());
    for (std::size_t k = 0; k < measures; ++k) partials[slot * measures + k] += sums[unit * measures + k];
  }
}

std::vector<ElementwiseUpdate::Work>::const_iterator ElementwiseUpdate::work_of(std::int64_t unit) const {
  const auto next = std::upper_bound(work_.begin(), work_.end(), unit,
                                     [](std::int64_t index, const Work& work) { return index < work.first_unit; });
  return next - 1;
}

void ElementwiseUpdate::run_units(std::int64_t begin, std::int64_t end) const {
  for (auto work = work_of(begin); work != work_.end() && work->first_unit < end; ++work) {
    const auto from = static_cast<std::size_t>(std::max(begin, work->first_unit) - work->first_unit) * kUnit;
    const auto to = static_cast<std::size_t>(end - work->first_unit) * kUnit;
    run(*work, std::min(from, work->numel), std::min(to, work->numel));
  }
}

void ElementwiseUpdate::run(const Work& work, std::size_t begin, std::size_t end, double* sums) {
  if (work.plain) return work.kernel(block_of(work, begin, end, sums), work.numbers);
  run_converting(work, begin, end, sums);
}

Block ElementwiseUpdate::block_of(const Work& work, std::size_t begin, std::size_t end, double* sums) {
  Block block{work.param + begin, at(work.grad, begin), is_bf16(work.grad), nullptr, false, {}, end - begin, sums};
  if (work.compute.data != nullptr && is_bf16(work.compute)) {
    block.copy = static_cast<std::uint16_t*>(work.compute.data) + begin;
    block.stream_copy = work.numel >= kStreamedElements && reinterpret_cast<std::uintptr_t>(block.copy) % 64 == 0;
  }
  for (std::size_t s = 0; s < work.state_count; ++s) {
    block.state[s] = static_cast<float*>(work.states[s].data) + begin;
  }
  return block;
}

void ElementwiseUpdate::run_converting(const Work& work, std::size_t begin, std::size_t end, double* sums) {
  alignas(64) float grad[kConversionBlock];
  alignas(64) float states[kMaxStates][kConversionBlock];
  for (std::size_t from = begin; from < end; from += kConversionBlock) {
    const std::size_t count = std::min(kConversionBlock, end - from);
    Block block = block_of(work, from, from + count, sums);
    if (work.grad.dtype == sdk::Dtype::kFloat16) {
      widen(at(work.grad, from), work.grad.dtype, grad, count);
      block.grad = grad;
    }
    for (std::size_t s = 0; s < work.state_count; ++s) {
      const sdk::Values& state = work.states[s];
      if (is_fp32(state)) continue;
      widen(at(state, from), state.dtype, states[s], count);
      block.state[s] = states[s];
    }
    work.kernel(block, work.numbers);
    if (sums != nullptr) continue;
    for (std::size_t s = 0; s < work.state_count; ++s) {
      const sdk::Values& state = work.states[s];
      if (!is_fp32(state)) narrow(states[s], at(state, from), state.dtype, count);
    }
    if (work.compute.data != nullptr && block.copy == nullptr) {
      narrow(work.param + from, at(work.compute, from), work.compute.dtype, count);
    }
  }
}

}  // namespace capstan::elements
