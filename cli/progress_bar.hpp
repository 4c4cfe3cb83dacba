#pragma once

#include <chrono>
#include <string>

#include "cli/terminal.hpp"
#include "core/run/pace.hpp"

namespace capstan::cli {

/// "step 120/200 [=====>   ] loss 2.4531  lr 0.0003  112.0 samples/s  14,336 tokens/s  ETA 0:00:42", in `width`
/// columns: a narrow terminal loses the bar first, then the end of the line.
std::string bar_text(const StepProgress& facts, int width);

/// One line at the bottom of a terminal that is drawn over itself. Does nothing where standard error is no terminal.
/// One at a time; log lines clear it.
class ProgressBar {
 public:
  explicit ProgressBar(bool wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;

  /// Redraws, a few times a second at most.
  void show(const StepProgress& facts);
  void show(const std::string& line);
  /// Whether show() would draw now.
  bool is_due() const;
  /// Takes the line away, before something else is printed.
  static void clear();

 private:
  void draw(const std::string& line);

  Terminal terminal_;
  bool on_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace capstan::cli
