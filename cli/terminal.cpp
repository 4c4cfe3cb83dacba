#include "cli/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace capstan::cli {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

Terminal::Terminal(int descriptor)
    : descriptor_(descriptor),
      interactive_(isatty(descriptor) != 0 && environment("TERM") != "dumb"),
      colour_(interactive_ && environment("NO_COLOR").empty()) {}

int Terminal::width() const {
  winsize size{};
  if (ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace capstan::cli
