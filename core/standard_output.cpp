#include "core/standard_output.hpp"

#include <cstdio>

namespace capstan {

void write_to_standard_output(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace capstan
