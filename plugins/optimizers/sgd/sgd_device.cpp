// SGD for device "cuda".
#include "plugins/optimizers/common/device_slot.hpp"
#include "plugins/optimizers/sgd/sgd_device_kernel.hpp"
#include "plugins/optimizers/sgd/sgd_settings.hpp"

namespace capstan::optimizers {
namespace {

class SGD {
 public:
  SGD(const sdk::Host& host, const sdk::Params& params) : host_(host) { check_sgd(params); }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read_sgd);
    for (const sdk::Slot raw : slots) {
      const sdk::CudaSlot slot(raw);
      const SgdGroup& group = groups[slot.group()];
      const bool momentum = group.momentum != 0;
      const bool first = momentum && ++slot.counter(kStep) == 1;
      const DeviceBlock block =
          momentum ? block_of(slot, {kMomentumBuffer}, host_.cuda_stream()) : block_of(slot, {}, host_.cuda_stream());
      finish(slot, block, launch_sgd(block, sgd_numbers(group, first, step.grad_scale()), momentum));
    }
  }

 private:
  sdk::Host host_;
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::SGD, "SGD">)
