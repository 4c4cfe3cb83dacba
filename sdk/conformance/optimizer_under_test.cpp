#include "sdk/conformance/optimizer_under_test.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "capstan/sdk/share.hpp"
#include "sdk/conformance/device_under_test.hpp"

namespace capstan::conformance {
namespace {

constexpr std::int64_t kGuard = 32;    // elements on each side
constexpr double kGuardValue = 123.0;  // exact in every dtype

c10::ScalarType dtype_of(const std::string& name) {
  if (name == "bfloat16") return c10::ScalarType::BFloat16;
  if (name == "float16") return c10::ScalarType::Half;
  if (name == "int64") return c10::ScalarType::Long;
  if (name == "uint8") return c10::ScalarType::Byte;
  if (name == "int8") return c10::ScalarType::Char;
  return c10::ScalarType::Float;  // float32, and "param": the masters are
}

bool is_off(const Json& numbers, const std::string& name) {
  const Json* value = name.empty() ? nullptr : numbers.find(name);
  if (!value) return false;
  return value->is_bool() ? !value->as_bool() : value->is_number() && value->as_number() == 0;
}

/// Values of a state for `elements`.
std::int64_t state_count(const StateSpec& state, std::int64_t elements, std::span<const std::int64_t> shape,
                         std::int64_t world_size = 1) {
  return state.like == StateSpec::Like::kShare ? sdk::share_of(elements, world_size)
                                               : state.values_for(elements, shape);
}

/// The first role that any state asks for.
std::optional<capstan_param_role> wanted_role(const ComponentManifest& manifest) {
  for (const StateSpec& state : manifest.state) {
    if (!state.when_roles.empty()) return state.when_roles.front();
  }
  return std::nullopt;
}

/// How many dimensions give the states of matrices and the like: the fewest above one that a state asks for.
std::size_t dims_for(const ComponentManifest& manifest) {
  const capstan_param_role role = wanted_role(manifest).value_or(CAPSTAN_PARAM_OTHER);
  std::size_t dims =
      role == CAPSTAN_PARAM_MATRIX || role == CAPSTAN_PARAM_EMBEDDING || role == CAPSTAN_PARAM_HEAD ? 2 : 1;
  for (const StateSpec& state : manifest.state) {
    for (const std::int64_t wanted : state.when_dims) {
      if (wanted > 1 && (dims == 1 || wanted < static_cast<std::int64_t>(dims)))
        dims = static_cast<std::size_t>(wanted);
    }
  }
  return dims;
}

std::vector<std::int64_t> shape_for(const ComponentManifest& manifest, std::int64_t numel) {
  const std::size_t dims = dims_for(manifest);
  std::vector<std::int64_t> shape(dims, 1);
  shape[0] = numel;
  if (dims == 1) return shape;
  for (std::int64_t rows = 1; rows * rows <= numel; ++rows) {
    if (numel % rows == 0) shape[1] = rows;
  }
  shape[0] = numel / shape[1];
  return shape;
}

capstan_tensor handle(at::Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<capstan_tensor>(&tensor) : nullptr;
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.to(at::kCPU); }

at::Tensor from_values(const std::vector<float>& values) {
  return at::from_blob(const_cast<float*>(values.data()), {static_cast<std::int64_t>(values.size())}).clone();
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor values = on_host(tensor);
  return std::string(static_cast<const char*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes()));
}

}  // namespace

Piece::Piece(const ComponentManifest& manifest, const Json& numbers, std::string piece_name,
             const std::vector<float>& values, const Options& options)
    : name(std::move(piece_name)), device_(device_of(manifest)) {
  const auto numel = static_cast<std::int64_t>(values.size());
  param_tensor = guarded(numel, c10::ScalarType::Float, 0, device_);
  param_tensor.copy_(from_values(values));
  grad_tensor = guarded(numel, options.grad_dtype, 0, device_);
  if (options.compute_copy) {
    compute_tensor = guarded(numel, c10::ScalarType::BFloat16, 0, device_);
    compute_tensor.copy_(param_tensor);
  }
  const std::int64_t full = options.full_numel > 0 ? options.full_numel : numel;
  shape_ = shape_for(manifest, full);
  slot.role = wanted_role(manifest).value_or(shape_.size() > 1 ? CAPSTAN_PARAM_MATRIX : CAPSTAN_PARAM_OTHER);
  for (const StateSpec& state : manifest.states_with(numbers)) {
    if (state.extent == StateSpec::Extent::kModel) continue;
    if (is_off(numbers, state.when) || !state.is_for(name, shape_, static_cast<capstan_param_role>(slot.role))) {
      states.emplace_back();
      continue;
    }
    // A count of steps costs no wait for a device.
    const c10::Device place = state.like == StateSpec::Like::kScalar ? c10::Device(at::kCPU) : device_;
    states.push_back(guarded(state_count(state, state.extent == StateSpec::Extent::kFull ? full : numel, shape_),
                             dtype_of(state.dtype), state.init, place));
    if (state.init_param) states.back().copy_(param_tensor);
  }
  slot.struct_size = sizeof slot;
  slot.offset = static_cast<std::uint64_t>(options.offset);
  slot.numel = static_cast<std::uint64_t>(numel);
  slot.full_numel = static_cast<std::uint64_t>(full);
  slot.full_dims = static_cast<std::uint32_t>(shape_.size());
  slot.state_count = states.size();
  if (manifest.has_trait("sparse_rows")) {
    rows_.resize(static_cast<std::size_t>(shape_[0]));
    std::iota(rows_.begin(), rows_.end(), 0);
  }
}

at::Tensor Piece::guarded(std::int64_t numel, c10::ScalarType dtype, double value, c10::Device place) {
  whole_.push_back(at::full({numel + 2 * kGuard}, kGuardValue, at::TensorOptions().dtype(dtype).device(place)));
  at::Tensor inner = whole_.back().narrow(0, kGuard, numel);
  inner.fill_(value);
  return inner;
}

void Piece::set_grad(const std::vector<float>& values) { grad_tensor.copy_(from_values(values)); }

std::vector<float> Piece::param() const {
  const at::Tensor values = on_host(param_tensor);
  const auto* data = values.const_data_ptr<float>();
  return {data, data + values.numel()};
}

std::string Piece::bytes() const {
  std::string bytes = bytes_of(param_tensor);
  for (const at::Tensor& state : states) {
    if (state.defined()) bytes += bytes_of(state);
  }
  return bytes;
}

bool Piece::finite() const {
  const auto all = [](const at::Tensor& tensor) {
    return !tensor.defined() || at::isfinite(tensor).all().item<bool>();
  };
  return all(param_tensor) && std::all_of(states.begin(), states.end(), all);
}

bool Piece::guards_intact() const {
  return std::all_of(whole_.begin(), whole_.end(), [](const at::Tensor& whole) {
    const at::Tensor front = whole.narrow(0, 0, kGuard);
    const at::Tensor back = whole.narrow(0, whole.numel() - kGuard, kGuard);
    return front.eq(kGuardValue).all().item<bool>() && back.eq(kGuardValue).all().item<bool>();
  });
}

void Piece::copy_from(const Piece& other) {
  param_tensor.copy_(other.param_tensor);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i].defined()) states[i].copy_(other.states[i]);
  }
}

void Piece::copy_saved_from(const Piece& other, const ComponentManifest& manifest) {
  param_tensor.copy_(other.param_tensor);
  std::size_t index = 0;
  for (const StateSpec& state : manifest.state) {
    if (state.extent == StateSpec::Extent::kModel) continue;
    if (states[index].defined() && !state.scratch) states[index].copy_(other.states[index]);
    ++index;
  }
}

const capstan_slot* Piece::raw() {
  state_handles_.clear();
  for (at::Tensor& state : states) state_handles_.push_back(handle(state));
  slot.name = as_str(name);
  slot.param = handle(param_tensor);
  slot.grad = handle(grad_tensor);
  slot.compute = handle(compute_tensor);
  slot.compute_written = &compute_written;
  slot.state = state_handles_.data();
  slot.full_shape = shape_.data();
  slot.grad_rows = rows_.empty() ? nullptr : rows_.data();
  slot.grad_row_count = rows_.size();
  return &slot;
}

OptimizerUnderTest::OptimizerUnderTest(const Context& context, const ComponentManifest& component, const Json& params,
                                       const std::function<void(capstan_host&)>& lend, std::uint32_t world_size)
    : manifest(component), numbers(params), component_(context, component, params, lend), world_size_(world_size) {
  if (!numbers.find("lr")) numbers["lr"] = 1e-3;
}

void OptimizerUnderTest::make_model_states(const std::vector<Piece*>& pieces) {
  if (!model_states.empty()) return;
  for (const StateSpec& state : manifest.state) {
    if (state.extent != StateSpec::Extent::kModel) continue;
    std::int64_t count = 0;
    for (const Piece* piece : pieces) {
      const auto numel = static_cast<std::int64_t>(piece->slot.full_numel);
      count += state_count(state, numel, {piece->slot.full_shape, piece->slot.full_dims}, world_size_);
    }
    const auto options = at::TensorOptions().dtype(dtype_of(state.dtype)).device(device_of(manifest));
    model_states.push_back(at::full({count}, state.init, options));
  }
}

template <class Call>
void OptimizerUnderTest::with_step(double grad_scale, const Call& call) {
  std::vector<capstan_tensor> model_handles;
  for (at::Tensor& state : model_states) model_handles.push_back(handle(state));
  const Group group{numbers};
  const capstan_group* groups[] = {group.raw()};
  capstan_step step{};
  step.struct_size = sizeof step;
  step.update_index = updates_;
  step.grad_scale = grad_scale;
  step.groups = groups;
  step.group_count = 1;
  step.model_state = model_handles.data();
  step.model_state_count = model_handles.size();
  call(step);
}

bool OptimizerUnderTest::wants_local_gradients() {
  const auto* table = component_.vtable<capstan_optimizer>();
  if (!CAPSTAN_HAS(table, gradient_mode)) return false;
  int mode = -1;
  must("gradient_mode",
       [&](capstan_error* error) { return table->gradient_mode(component_.self(), updates_, &mode, error); });
  expect(mode == 0 || mode == 1, "gradient_mode answers " + std::to_string(mode) + ", which is neither 0 nor 1.");
  return mode == 1;
}

void OptimizerUnderTest::synchronize(const std::vector<Piece*>& pieces) {
  const auto* table = component_.vtable<capstan_optimizer>();
  std::vector<const capstan_slot*> slots;
  for (Piece* piece : pieces) slots.push_back(piece->raw());
  if (CAPSTAN_HAS(table, synchronize_step)) {
    with_step(1.0, [&](const capstan_step& step) {
      must("synchronize", [&](capstan_error* error) {
        return table->synchronize_step(component_.self(), slots.data(), slots.size(), &step, error);
      });
    });
  } else if (CAPSTAN_HAS(table, synchronize)) {
    must("synchronize", [&](capstan_error* error) {
      return table->synchronize(component_.self(), slots.data(), slots.size(), error);
    });
  }
}

void OptimizerUnderTest::update(const std::vector<std::vector<Piece*>>& calls, double grad_scale) {
  std::vector<Piece*> all;
  for (const auto& pieces : calls) all.insert(all.end(), pieces.begin(), pieces.end());
  make_model_states(all);
  with_step(grad_scale, [&](const capstan_step& step) { update(calls, step); });
  ++updates_;
}

void OptimizerUnderTest::update(const std::vector<std::vector<Piece*>>& calls, const capstan_step& before) {
  std::vector<std::vector<const capstan_slot*>> slots;
  for (const auto& pieces : calls) {
    slots.emplace_back();
    for (Piece* piece : pieces) slots.back().push_back(piece->raw());
  }
  capstan_step step = before;
  const std::vector<double> model_totals = measure_model(slots, step);
  if (!model_totals.empty()) step.model_totals = model_totals.data();
  // As the engine does: all partial sums first, added over the shards of each parameter.
  const auto* table = component_.vtable<capstan_optimizer>();
  const auto measures = static_cast<std::size_t>(manifest.measures);
  std::map<std::string, std::vector<double>> sums;
  if (measures > 0) {
    expect(CAPSTAN_HAS(table, measure), "the manifest has measures, but the optimizer has no function measure.");
    for (std::size_t call = 0; call < calls.size(); ++call) {
      std::vector<double> partials(measures * calls[call].size());
      must("measure", [&](capstan_error* error) {
        return table->measure(component_.self(), slots[call].data(), slots[call].size(), &step, partials.data(), error);
      });
      for (std::size_t i = 0; i < calls[call].size(); ++i) {
        auto& sum = sums[calls[call][i]->name];
        sum.resize(measures);
        for (std::size_t k = 0; k < measures; ++k) sum[k] += partials[i * measures + k];
      }
    }
  }
  for (std::size_t call = 0; call < calls.size(); ++call) {
    std::vector<double> totals;
    for (const Piece* piece : calls[call]) {
      const auto& sum = sums[piece->name];
      totals.insert(totals.end(), sum.begin(), sum.end());
    }
    call_update(slots[call], totals, step);
  }
}

std::vector<double> OptimizerUnderTest::measure_model(const std::vector<std::vector<const capstan_slot*>>& calls,
                                                      const capstan_step& step) {
  const auto* table = component_.vtable<capstan_optimizer>();
  const bool has = CAPSTAN_HAS(table, measure_model);
  const auto width = static_cast<std::size_t>(manifest.measures_model);
  expect(has || width == 0, "the manifest has measures_model, but the optimizer has no function measure_model.");
  expect(!has || width > 0, "its code has a function measure_model, but the manifest has no measures_model.");
  std::vector<double> totals(width);
  if (width == 0) return totals;
  for (const auto& slots : calls) {
    std::vector<double> partials(width * slots.size());
    must("measure_model", [&](capstan_error* error) {
      return table->measure_model(component_.self(), slots.data(), slots.size(), &step, partials.data(), error);
    });
    for (std::size_t i = 0; i < partials.size(); ++i) totals[i % width] += partials[i];
  }
  return totals;
}

void OptimizerUnderTest::call_update(const std::vector<const capstan_slot*>& slots, const std::vector<double>& totals,
                                     const capstan_step& step) {
  const auto* table = component_.vtable<capstan_optimizer>();
  must("update", [&](capstan_error* error) {
    return table->update(component_.self(), slots.data(), slots.size(), &step,
                         manifest.measures > 0 ? totals.data() : nullptr, error);
  });
}

std::string OptimizerUnderTest::save() {
  const auto* table = component_.vtable<capstan_optimizer>();
  if (!CAPSTAN_HAS(table, save)) return "{}";
  capstan_sink sink;
  must("save", [&](capstan_error* error) { return table->save(component_.self(), &sink, error); });
  return sink.text;
}

void OptimizerUnderTest::load(const std::string& saved, std::int64_t updates) {
  updates_ = updates;
  const auto* table = component_.vtable<capstan_optimizer>();
  if (!CAPSTAN_HAS(table, load)) return;
  must("load", [&](capstan_error* error) { return table->load(component_.self(), as_str(saved), error); });
}

std::vector<float> random_values(std::mt19937_64& random, std::size_t count, float scale) {
  std::vector<float> values(count);
  // Written out, so that a seed means the same everywhere: uniform in [-1, 1).
  for (float& value : values) {
    value = scale * (static_cast<float>(random() >> 40) / static_cast<float>(1 << 23) - 1.0f);
  }
  return values;
}

}  // namespace capstan::conformance
