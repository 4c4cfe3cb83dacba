#pragma once

#include <stdexcept>

namespace capstan::cli {

/// The command line cannot be understood, or names something that is not there; the text says why. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace capstan::cli
