#include "core/shared_failure.hpp"

#include <atomic>

namespace capstan {
namespace {

std::atomic<bool> left = false;

}  // namespace

void leave_failure_to_another() { left = true; }

bool failure_is_left_to_another() { return left; }

}  // namespace capstan
