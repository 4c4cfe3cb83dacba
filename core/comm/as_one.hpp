#pragma once

#include <functional>
#include <string>

#include "core/comm/communicator.hpp"

namespace capstan {

/// Runs `work` on every rank, and goes on with all of them or none: what it throws on one rank, of whatever type, that
/// rank throws again, and the others throw a RuntimeFault that begins with "rank N: ". Called by all ranks with the
/// same name; `work` must not communicate.
void as_one(Communicator& communicator, const std::string& name, const std::function<void()>& work,
            Communicator::Caller caller = __builtin_FUNCTION());

}  // namespace capstan
