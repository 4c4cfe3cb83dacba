#pragma once

#include <string_view>

namespace capstan {

/// Writes a line to standard output at once, where a program has named no other place for lines of training. [any
/// thread]
void write_to_standard_output(std::string_view line);

}  // namespace capstan
