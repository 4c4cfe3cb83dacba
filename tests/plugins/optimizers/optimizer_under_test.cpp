#include "tests/plugins/optimizers/optimizer_under_test.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <map>
#include <regex>

namespace capstan::testing {
namespace {

capstan_tensor handle(at::Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<capstan_tensor>(&tensor) : nullptr;
}

bool is_of_model(const Json& spec) {
  const Json* extent = spec.find("extent");
  return extent != nullptr && extent->as_string() == "model";
}

/// What one rank serves of `count` elements: the padded total over the ranks.
std::int64_t share_of(std::int64_t count, std::int64_t ranks) {
  std::int64_t padded = count;
  while (padded % ranks != 0 || (padded / ranks) % 8 != 0 || (padded / ranks) % ranks != 0) ++padded;
  return padded / ranks;
}

bool is_on(const Json& value) { return value.is_bool() ? value.as_bool() : value.as_number() != 0; }

/// Whether a parameter of that name and shape is to have the state.
bool wants_state(const Json& spec, const Json& params, const TestSlot& slot) {
  if (const Json* when = spec.find("when"); when != nullptr && !is_on(params.at(when->as_string()))) return false;
  if (const Json* dims = spec.find("when_dims")) {
    const Json::Array list = dims->is_array() ? dims->as_array() : Json::Array{*dims};
    const auto fits = [&](const Json& count) {
      return count.as_integer() == static_cast<std::int64_t>(slot.shape.size());
    };
    if (std::none_of(list.begin(), list.end(), fits)) return false;
  }
  if (const Json* roles = spec.find("when_roles")) {
    const auto& wanted = roles->as_array();
    if (std::find(wanted.begin(), wanted.end(), Json(slot.shape.size() > 1 ? "matrix" : "other")) == wanted.end()) {
      return false;
    }
  }
  const Json* names = spec.find("when_names");
  if (names == nullptr) return true;
  const Json::Array& patterns = params.at(names->as_string()).as_array();
  return std::any_of(patterns.begin(), patterns.end(), [&](const Json& pattern) {
    return std::regex_search(slot.name, std::regex(pattern.as_string()));
  });
}

/// Values of a state with that `like`.
std::int64_t state_numel(const Json* like, const TestSlot& slot) {
  const std::int64_t numel = slot.param.numel();
  if (like == nullptr || like->as_string() == "param") return numel;
  if (like->as_string() == "row") return numel / slot.shape.back();
  if (like->as_string() == "column") return numel / slot.shape[slot.shape.size() - 2];
  return 1;
}

at::Tensor make_state(const Json& spec, const Json& params, const TestSlot& slot, at::ScalarType dtype,
                      at::Device device) {
  if (!wants_state(spec, params, slot)) return {};
  const Json* like = spec.find("like");
  const Json* stored = spec.find("dtype");
  const Json* init = spec.find("init");
  const bool scalar = like != nullptr && like->as_string() == "scalar";
  const bool counter = stored != nullptr && stored->as_string() == "int64";
  const at::ScalarType type = counter ? at::kLong : scalar ? at::kFloat : dtype;
  return at::full({state_numel(like, slot)}, init != nullptr ? init->as_number() : 0.0, type)
      .to(scalar ? at::Device(at::kCPU) : device);
}

}  // namespace

at::Tensor tensor_of(const std::vector<double>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
  for (std::size_t i = 0; i < values.size(); ++i) tensor.data_ptr<float>()[i] = static_cast<float>(values[i]);
  return tensor;
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

at::Tensor noise(std::int64_t count, std::uint64_t seed) {
  at::Tensor tensor = at::empty({count}, at::kFloat);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tensor.data_ptr<float>()[i] = static_cast<float>(static_cast<double>(state >> 33) / double(1u << 30) - 1.0);
  }
  return tensor;
}

OptimizerUnderTest::OptimizerUnderTest(std::string_view plugin, std::string_view type, const Json& params, Seat seat,
                                       at::Device device)
    : component("optimizer", plugin, type, params, seat), device_(device) {
  add_group(Json::object());
}

void OptimizerUnderTest::add_group(const Json& changes) {
  capstan_group& group = groups_.emplace_back(capstan_group{component.params()});
  for (const auto& [name, value] : changes.as_object()) group.numbers[name] = value;
}

TestSlot& OptimizerUnderTest::add(at::Tensor param, std::uint32_t group, at::ScalarType state_dtype,
                                  const std::string& name) {
  TestSlot& slot = slots_.emplace_back();
  slot.name = name.empty() ? "p" + std::to_string(slots_.size() - 1) : name;
  slot.group = group;
  slot.shape = param.sizes().vec();
  slot.param = param.to(device_).view({-1});
  slot.grad = at::full({slot.param.numel()}, 0.0, at::kFloat).to(device_);
  slot.full_numel = static_cast<std::uint64_t>(slot.param.numel());
  if (const Json* states = component.manifest().find("state")) {
    for (const Json& spec : states->as_array()) {
      if (is_of_model(spec)) continue;
      slot.state.push_back(make_state(spec, groups_[group].numbers, slot, state_dtype, device_));
    }
  }
  return slot;
}

TestSlot& OptimizerUnderTest::add_part(at::Tensor param, std::uint64_t offset, std::uint64_t full_numel) {
  TestSlot& slot = add(std::move(param));
  slot.offset = offset;
  slot.full_numel = full_numel;
  slot.shape = {static_cast<std::int64_t>(full_numel)};
  return slot;
}

at::Tensor OptimizerUnderTest::state(std::size_t slot, std::string_view name) const {
  std::size_t index = 0;
  for (const Json& spec : component.manifest().at("state").as_array()) {
    if (is_of_model(spec)) continue;
    if (spec.at("name").as_string() == name) return slots_[slot].state[index];
    ++index;
  }
  throw std::runtime_error("no state " + std::string(name));
}

void OptimizerUnderTest::make_model_states() {
  const Json* specs = component.manifest().find("state");
  if (specs == nullptr) return;
  for (const Json& spec : specs->as_array()) {
    const std::string& name = spec.at("name").as_string();
    if (!is_of_model(spec) || model_states_.contains(name)) continue;
    std::int64_t count = 0;
    for (const TestSlot& slot : slots_) {
      const auto numel = static_cast<std::int64_t>(slot.full_numel);
      count += spec.at("like").as_string() == "share" ? share_of(numel, component.seat().world_size) : numel;
    }
    model_states_[name] = at::full({count}, 0.0, at::kFloat).to(device_);
  }
}

at::Tensor OptimizerUnderTest::model_state(std::string_view name) {
  make_model_states();
  return model_states_.find(name)->second;
}

template <class Call>
void OptimizerUnderTest::with_slots(double grad_scale, const Call& call) {
  make_model_states();
  std::deque<capstan_slot> slots;
  std::deque<std::vector<capstan_tensor>> states;
  std::vector<const capstan_slot*> pointers;
  std::vector<const capstan_group*> groups;
  std::vector<capstan_tensor> model_states;
  for (const auto& group : groups_) groups.push_back(&group);
  if (const Json* specs = component.manifest().find("state")) {
    for (const Json& spec : specs->as_array()) {
      if (is_of_model(spec)) model_states.push_back(handle(model_states_[spec.at("name").as_string()]));
    }
  }
  for (TestSlot& slot : slots_) {
    auto& handles = states.emplace_back();
    for (at::Tensor& state : slot.state) handles.push_back(handle(state));
    slot.compute_written = 0;
    slots.push_back({sizeof(capstan_slot),
                     slot.group,
                     {slot.name.data(), slot.name.size()},
                     handle(slot.param),
                     handle(slot.grad),
                     handles.data(),
                     slot.offset,
                     static_cast<std::uint64_t>(slot.param.numel()),
                     slot.full_numel,
                     slot.shape.data(),
                     static_cast<std::uint32_t>(slot.shape.size()),
                     handle(slot.compute),
                     &slot.compute_written,
                     handles.size(),
                     slot.shape.size() > 1 ? CAPSTAN_PARAM_MATRIX : CAPSTAN_PARAM_OTHER,
                     slot.sparse ? slot.rows.data() : nullptr,
                     slot.rows.size()});
    pointers.push_back(&slots.back());
  }
  const capstan_step step{sizeof(capstan_step), update_index_,       grad_scale,          groups.data(),
                          groups.size(),        model_states.data(), model_states.size(), nullptr};
  call(pointers, step);
}

void OptimizerUnderTest::update(double grad_scale) {
  const auto& vtable = component.vtable<capstan_optimizer>();
  with_slots(grad_scale, [&](const auto& pointers, const capstan_step& step) {
    totals_.clear();
    if (vtable.measure != nullptr) {
      const auto measures = static_cast<std::size_t>(component.manifest().at("measures").as_integer());
      std::vector<double> partials(measures * pointers.size());
      expect_ok([&](capstan_error* error) {
        return vtable.measure(component.self(), pointers.data(), pointers.size(), &step, partials.data(), error);
      });
      std::map<std::string, std::vector<double>> sums;
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        auto& sum = sums[slots_[i].name];
        sum.resize(measures);
        for (std::size_t k = 0; k < measures; ++k) sum[k] += partials[i * measures + k];
      }
      for (const TestSlot& slot : slots_) {
        totals_.insert(totals_.end(), sums[slot.name].begin(), sums[slot.name].end());
      }
    }
    expect_ok([&](capstan_error* error) {
      return vtable.update(component.self(), pointers.data(), pointers.size(), &step,
                           totals_.empty() ? nullptr : totals_.data(), error);
    });
  });
  ++update_index_;
}

bool OptimizerUnderTest::wants_local_gradients() {
  int mode = -1;
  expect_ok([&](capstan_error* error) {
    return component.vtable<capstan_optimizer>().gradient_mode(component.self(), update_index_, &mode, error);
  });
  return mode == 1;
}

void OptimizerUnderTest::synchronize() {
  with_slots(1.0, [&](const auto& pointers, const capstan_step& step) {
    expect_ok([&](capstan_error* error) {
      return component.vtable<capstan_optimizer>().synchronize_step(component.self(), pointers.data(), pointers.size(),
                                                                    &step, error);
    });
  });
}

std::string OptimizerUnderTest::save() {
  capstan_sink sink;
  expect_ok(
      [&](capstan_error* error) { return component.vtable<capstan_optimizer>().save(component.self(), &sink, error); });
  return sink.text;
}

void OptimizerUnderTest::load(const std::string& saved) {
  expect_ok([&](capstan_error* error) {
    return component.vtable<capstan_optimizer>().load(component.self(), {saved.data(), saved.size()}, error);
  });
}

void OptimizerUnderTest::resume_from(OptimizerUnderTest& other) {
  load(other.save());
  const auto& specs = component.manifest().at("state").as_array();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].param.copy_(other.slots_[i].param);
    std::size_t index = 0;
    for (const Json& spec : specs) {
      if (is_of_model(spec)) continue;
      const Json* scratch = spec.find("scratch");
      if (scratch == nullptr || !scratch->as_bool()) slots_[i].state[index].copy_(other.slots_[i].state[index]);
      ++index;
    }
  }
  make_model_states();
  for (auto& [name, values] : model_states_) {
    const at::Tensor& saved_values = other.model_states_[name];
    if (values.numel() == saved_values.numel()) values.copy_(saved_values);
  }
  update_index_ = other.update_index_;
}

}  // namespace capstan::testing
