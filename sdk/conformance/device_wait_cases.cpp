#include "capstan/sdk/on_cpu/emulated_device.hpp"
#include "sdk/conformance/device_under_test.hpp"
#include "sdk/conformance/optimizer_under_test.hpp"

namespace capstan::conformance {
namespace {

void check_waits(const Context& context, const ComponentManifest& component) {
  if (component.measures > 0 || component.measures_model > 0 || component.has_trait("own_communication")) {
    throw Skip("its sums go to the host, or it communicates by itself, so that it has to wait.");
  }
  auto random = context.random();
  OptimizerUnderTest optimizer(context, component);
  const auto& device = sdk::kernels_on_cpu::EmulatedDevice::get();
  if (!device.waits) throw Skip("only the emulated device counts waits.");
  std::vector<Piece> pieces;
  for (const char* name : {"a", "b", "c"}) {
    pieces.emplace_back(component, optimizer.numbers, name, random_values(random, 1000));
  }
  constexpr int kUpdates = 3;
  for (int update = 0; update < kUpdates; ++update) {
    for (Piece& piece : pieces) piece.set_grad(random_values(random, 1000));
    const std::uint64_t before = device.waits();
    optimizer.update({&pieces[0], &pieces[1], &pieces[2]});
    const std::uint64_t waits = device.waits() - before;
    // Memory and numbers may be made in the first update.
    expect(update == 0 || waits == 0, "update " + std::to_string(update) +
                                          " of three parameters waits for the device " + std::to_string(waits) +
                                          " times. Launch, and return.");
  }
}

}  // namespace

Cases device_wait_cases(const ComponentManifest& component) {
  if (component.runs_on("cpu")) return {};
  return {{"optimizer/" + component.type + "/device_waits", "An update does not wait for the device.",
           [component](const Context& context) { check_waits(context, component); }}};
}

}  // namespace capstan::conformance
