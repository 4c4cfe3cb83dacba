// One of the 1-bit optimizers as GPUs have it, with the GPU's rules applied to host memory.
#include "plugins/optimizers/onebit/host_device.hpp"
#include "tests/plugins/optimizers/rule_launch.hpp"
#include CAPSTAN_TEST_HEADER

namespace capstan::testing {
namespace {

class RuleDevice : public optimizers::HostDevice {
 public:
  explicit RuleDevice(const sdk::Host&) : HostDevice(std::make_unique<RuleKernelsOnHost>()) {}
};

using RuleOptimizer = optimizers::On<optimizers::CAPSTAN_TEST_CLASS, RuleDevice>;

#define CAPSTAN_TEST_TEXT(name) CAPSTAN_TEST_QUOTED(name)
#define CAPSTAN_TEST_QUOTED(name) #name

}  // namespace
}  // namespace capstan::testing

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::testing::RuleOptimizer, CAPSTAN_TEST_TEXT(CAPSTAN_TEST_CLASS)>)
