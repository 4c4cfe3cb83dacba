#pragma once

#include "capstan/plugin.h"

namespace capstan {

/// Fills the functions of the host table that open tokenizers and use them.
void lend_tokenizers(capstan_host& host);

}  // namespace capstan
