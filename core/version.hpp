#pragma once

namespace capstan {

/// The release of Capstan that this library is of: "0.1.0".
const char* version();

}  // namespace capstan
