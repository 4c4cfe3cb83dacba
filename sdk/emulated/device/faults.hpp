#pragma once

namespace capstan::emulated {

/// From now on a host access to device memory, or to pinned memory under a copy that nobody has waited for, is named
/// with its backtrace before the process ends as it would have.
void name_faults();

}  // namespace capstan::emulated
