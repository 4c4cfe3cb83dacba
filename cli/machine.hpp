#pragma once

#include <string>
#include <vector>

namespace capstan::cli {

/// One thing that `capstan doctor` looked at.
struct Finding {
  enum class State { kFine, kOptional, kMissing };  // optional: absent, and only needed for what `remedy` names

  std::string name;  // "g++"
  State state = State::kFine;
  std::string text;    // what was found
  std::string remedy;  // how to get what is missing; empty when nothing is
};

struct FindingGroup {
  std::string title;
  std::vector<Finding> findings;
};

/// Compilers and build tools on the PATH.
FindingGroup find_build_tools();
/// CUDA toolkit, driver, GPUs, and the CUDA libraries that LibTorch would load; nothing of CUDA is loaded.
FindingGroup find_cuda(const std::string& torch_lib_dir);

}  // namespace capstan::cli
