#pragma once

#include "capstan/plugin.h"

namespace capstan::conformance {

/// Fills the functions of a host that compressions ask about pieces, for one rank that has all of every parameter.
void lend_piece_functions(capstan_host& host);

}  // namespace capstan::conformance
