#pragma once

#include <string>

#include "core/comm/comms_log.hpp"

namespace capstan::cli {

/// A table of what rank 0 has sent: in the whole run, and from `before` to `after`, the begin and the end of the last
/// step.
std::string traffic_text(const CommsLog::TrafficByName& all, const CommsLog::TrafficByName& before,
                         const CommsLog::TrafficByName& after);

}  // namespace capstan::cli
