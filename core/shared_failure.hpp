#pragma once

namespace capstan {

/// Another process of the run prints the failure with which this process ends. [any thread]
void leave_failure_to_another();
/// Whether leave_failure_to_another() was called: a program then ends without printing what it catches.
bool failure_is_left_to_another();

}  // namespace capstan
