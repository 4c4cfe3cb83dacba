#pragma once

#include <memory>

#include "core/comm/transport.hpp"

namespace capstan {

/// `host`, over which tensors of a device go through copies in host memory: for devices without links.
std::shared_ptr<Transport> through_host_copies(std::shared_ptr<Transport> host);

}  // namespace capstan
