#pragma once

#include <string>

#include "core/comm/rendezvous.hpp"

namespace capstan {

/// The process that has started this one and starts it again where one is lost: torchrun's agent, or the launcher of an
/// elastic launch; scripts between the two do not count. Another text for each process of each machine that ever ran.
/// Empty where nobody starts this process again.
std::string restarting_parent(const Environment& environment);

/// 16 hexadecimal digits that name a run. Where torchrun starts processes anew, the first engine of the process gets
/// the digits that the first engine of the process before had, the second engine those of the second, and so on.
/// Otherwise they are random.
std::string new_run_id(const Environment& environment);

}  // namespace capstan
