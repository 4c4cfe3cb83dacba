#pragma once

namespace capstan::cli {

/// From construction on the first SIGINT or SIGTERM only sets a flag; a second one ends the process at once, as if
/// nobody handled it.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;

  static bool requested();
};

}  // namespace capstan::cli
