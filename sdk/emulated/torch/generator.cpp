#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "device/device.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

/// A CPU generator of its own, as a device's.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index)
      : GeneratorImpl(c10::Device(device_type(), index), c10::DispatchKeySet(dispatch_key())),
        cpu(at::detail::createCPUGenerator()) {}

  void set_current_seed(std::uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(std::uint64_t) override {}
  std::uint64_t get_offset() const override { return 0; }
  std::uint64_t current_seed() const override { return cpu.current_seed(); }
  std::uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* made = new DeviceGenerator(device_.index());
    made->cpu = cpu.clone();
    return made;
  }

  at::Generator cpu;
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index < 0 ? static_cast<c10::DeviceIndex>(current_device()) : index);
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < kDevices; ++i) made->push_back(new_generator(static_cast<c10::DeviceIndex>(i)));
    return made;
  }();
  return all->at(static_cast<std::size_t>(index < 0 ? current_device() : index));
}

at::Generator cpu_generator(const at::Generator& generator) {
  const auto* own = dynamic_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  return own != nullptr ? own->cpu : generator;
}

}  // namespace capstan::emulated
