#include "core/parameters/state_offload.hpp"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "core/parameters/parameter_store.hpp"

namespace capstan {
namespace {

using testing::Each;

/// Moves bytes at the last moment that the interface allows: in wait().
struct Late {
  std::map<std::uint64_t, std::vector<std::byte>> buffers;
  std::function<void()> pending;

  static const capstan_offload& table() {
    static const capstan_offload instance = [] {
      capstan_offload table{};
      table.struct_size = sizeof table;
      table.register_buffer = [](void* self, std::uint64_t buffer, std::uint64_t bytes, capstan_error*) {
        static_cast<Late*>(self)->buffers[buffer].resize(bytes);
        return CAPSTAN_OK;
      };
      table.write_async = [](void* self, std::uint64_t buffer, const void* from, std::uint64_t bytes, std::uint64_t*,
                             capstan_error*) {
        auto& late = *static_cast<Late*>(self);
        late.pending = [&late, buffer, from, bytes] { std::memcpy(late.buffers[buffer].data(), from, bytes); };
        return CAPSTAN_OK;
      };
      table.read_async = [](void* self, std::uint64_t buffer, void* to, std::uint64_t bytes, std::uint64_t*,
                            capstan_error*) {
        auto& late = *static_cast<Late*>(self);
        late.pending = [&late, buffer, to, bytes] { std::memcpy(to, late.buffers[buffer].data(), bytes); };
        return CAPSTAN_OK;
      };
      table.wait = [](void* self, std::uint64_t, capstan_error*) {
        static_cast<Late*>(self)->pending();
        return CAPSTAN_OK;
      };
      return table;
    }();
    return instance;
  }
};

StateSpec state(const char* name, double init) {
  StateSpec spec;
  spec.name = name;
  spec.init = init;
  return spec;
}

std::vector<float> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

/// A store of two parameters of 70 and 4 elements, the values 3 and 4, each a sub-group whose states `late` keeps.
struct Offloaded {
  Offloaded(Late& late, std::vector<StateSpec> states)
      : store(parameters, groups, accelerator, [&] {
          static ComponentManifest manifest;
          manifest.type = "late";
          static const capstan_component descriptor{
              sizeof(capstan_component), {}, {}, nullptr, [](void*) {}, &Late::table()};
          ParameterStore::Options options;
          options.sub_group_size = 1;
          options.states = std::move(states);
          options.state_dtype = [](const StateSpec& spec) { return spec.dtype == "uint8" ? at::kByte : at::kFloat; };
          options.tier =
              std::make_unique<StateOffload>(Component(&descriptor, &late, ComponentRef{nullptr, &manifest}));
          return options;
        }()) {}

  const std::vector<NamedTensor> parameters = {{"large", at::zeros({70}).fill_(3).requires_grad_(true)},
                                               {"small", at::zeros({4}).fill_(4).requires_grad_(true)}};
  const ParameterGroups groups{parameters, {}, {}};
  const CpuAccelerator accelerator;
  ParameterStore store;
};

// The sub-groups have one staging memory and other layouts, so filling the second while the first is still being
// written would put one state's initial values into the other.
TEST(StateOffload, KeepsEverySubGroupsInitialValues) {
  Late late;
  Offloaded offloaded(late, {state("first", 1), state("second", 2)});
  ParameterStore& store = offloaded.store;

  ASSERT_EQ(store.sub_groups().size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    store.acquire(store.sub_groups()[i]);
    EXPECT_THAT(values(store.entries()[i].state[0]), Each(1)) << i;
    EXPECT_THAT(values(store.entries()[i].state[1]), Each(2)) << i;
    store.release(store.sub_groups()[i], false);
  }
}

TEST(StateOffload, KeepsBytesAndBlocksAndWhatBeginsAsTheParameters) {
  StateSpec code = state("code", 200), scale = state("scale", 7), start = state("start", 0);
  code.dtype = "uint8";
  scale.like = StateSpec::Like::kBlock;
  scale.block = 32;
  scale.when_min_numel = 5;
  start.init_param = true;
  Late late;
  Offloaded offloaded(late, {code, scale, start});
  ParameterStore& store = offloaded.store;
  store.start_states();
  const std::int64_t numels[] = {70, 4}, scales[] = {3, 0};
  for (std::size_t i = 0; i < 2; ++i) {
    store.acquire(store.sub_groups()[i]);
    const std::vector<at::Tensor>& states = store.entries()[i].state;
    EXPECT_EQ(states[0].scalar_type(), at::kByte);
    EXPECT_EQ(states[0].eq(200).sum().item<std::int64_t>(), numels[i]);
    ASSERT_EQ(states[1].defined(), scales[i] > 0);
    if (states[1].defined()) {
      EXPECT_EQ(states[1].eq(7).sum().item<std::int64_t>(), scales[i]);
    }
    EXPECT_EQ(states[2].eq(3.0 + static_cast<double>(i)).sum().item<std::int64_t>(), numels[i]);
    store.release(store.sub_groups()[i], false);
  }
}

}  // namespace
}  // namespace capstan
