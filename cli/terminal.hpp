#pragma once

#include <string>

namespace capstan::cli {

/// What a stream can show. Only a terminal gets colours and redrawn lines, and never escape sequences otherwise.
class Terminal {
 public:
  /// Looks at standard output (`descriptor` 1) or standard error (2). There are no colours where $NO_COLOR is set and
  /// not empty.
  explicit Terminal(int descriptor);

  bool interactive() const { return interactive_; }
  bool has_colour() const { return colour_; }
  /// Columns now; 80 where nothing tells.
  int width() const;
  /// The text as a heading, or as it is where there are no colours.
  std::string bold(const std::string& text) const { return colour_ ? "\x1b[1m" + text + "\x1b[0m" : text; }
  std::string dim(const std::string& text) const { return colour_ ? "\x1b[2m" + text + "\x1b[0m" : text; }

 private:
  int descriptor_;
  bool interactive_, colour_;
};

}  // namespace capstan::cli
