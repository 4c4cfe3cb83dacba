#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "core/engine/initialize.hpp"
#include "core/engine/layer_chain.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/registry.hpp"

namespace capstan {
namespace {

const std::filesystem::path kPlugin = CAPSTAN_TEST_BUILD_DIR "/tests/sdk_plugins/libcapstan_observer_older_layers.so";

/// Hidden states plus the one argument that the call has.
capstan_status add_argument(void*, capstan_tensor hidden, const capstan_argument* const* arguments, std::size_t count,
                            capstan_tensor* out, capstan_error* error) {
  return guarded(error, [&] {
    at::Tensor sum = tensor_of(hidden).clone();
    for (std::size_t i = 0; i < count; ++i) sum += tensor_of(arguments[i]->tensor);
    *out = reinterpret_cast<capstan_tensor>(new at::Tensor(sum));
  });
}

TEST(OlderObserver, WrapsALayerWhoseArgumentsItDoesNotKnow) {
  const IndexedPlugin plugin = read_plugin(kPlugin);
  EXPECT_EQ(plugin.manifest.abi_minor, 2u);
  EXPECT_EQ(plugin.manifest.components[0].layer_order, 50);
  Registry registry(PluginIndex::of({plugin}));
  const Component component = registry.create("here", "observer", "older_layers", Json::object(), model_host());
  ASSERT_FALSE(CAPSTAN_HAS(component.vtable<capstan_observer>(), layer_call));
  LayerChain chain;
  chain.add(component);

  at::Tensor hidden = at::full({2}, 3.0), mask = at::full({2}, 4.0);
  const std::string name = "blocks.0";
  const capstan_argument argument = {sizeof argument, as_str("attention_mask"), handle_of(mask)};
  const capstan_argument* const arguments[] = {&argument};
  capstan_layer_call call{};
  call.struct_size = sizeof call;
  call.name = as_str(name);
  call.hidden = handle_of(hidden);
  call.arguments = arguments;
  call.argument_count = 1;
  const capstan_layer_inner inner = {sizeof inner, nullptr, &add_argument};
  capstan_tensor out = nullptr;
  chain.run(call, inner, &out);

  EXPECT_TRUE(take_tensor(out).equal(at::full({2}, 7.0)));
}

}  // namespace
}  // namespace capstan
