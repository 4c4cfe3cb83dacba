#pragma once

#include <torch/torch.h>

#include <string>

namespace capstan::test {

/// A device of the type that the emulated device has in this process, by CAPSTAN_TEST_FACE: "cuda", or "emulated",
/// which is LibTorch's PrivateUse1.
torch::Device device(int index = 0);

}  // namespace capstan::test
