#include <ATen/Context.h>

#include "capstan/sdk/accelerator.hpp"

namespace capstan::probes {
namespace {

/// LibTorch finds the devices of files that are loaded before its first seed, and no others.
const std::uint64_t seed_when_loaded = at::globalContext().defaultGenerator(at::kCPU).current_seed();

}  // namespace

class EarlyDevice {
 public:
  struct Event {};

  EarlyDevice(const sdk::Host&, const sdk::Params&) {}

  std::uint32_t count() const { throw sdk::Error("this file was loaded at seed " + std::to_string(seed_when_loaded)); }
  std::string open(std::uint32_t) { return "{}"; }
  void* stream() { return nullptr; }
  sdk::DeviceMemory memory() const { return {}; }
  std::unique_ptr<Event> record() { return std::make_unique<Event>(); }
  double milliseconds(const Event&, const Event&) const { return 0; }
};

}  // namespace capstan::probes

CAPSTAN_PLUGIN(&capstan::sdk::accelerator<capstan::probes::EarlyDevice, "cuda">)
