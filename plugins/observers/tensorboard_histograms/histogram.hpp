#pragma once

#include "../../monitors/tensorboard/messages.hpp"
#include "capstan/plugin.h"

namespace capstan::observers {

/// The distribution of a tensor's finite values over 64 buckets of equal width. `count` is 0 when it has none, or when
/// its values are not in host memory or of no float type that we read.
monitors::Histogram histogram_of(capstan_tensor tensor);

}  // namespace capstan::observers
