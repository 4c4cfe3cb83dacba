#pragma once

#include "core/model/model.hpp"

namespace capstan {

/// Casts the running statistics of batch and instance normalisation to the type of the weight beside them: LibTorch's
/// kernels take no 16-bit weight with fp32 statistics. A module is one of these if it has a buffer `running_mean` or
/// `running_var` and a parameter `weight` of the same single dimension. Other buffers stay as they are.
void match_batch_norm_types(const Model& model);

}  // namespace capstan
