#pragma once

#include <string>
#include <vector>

#include "tests/support/process.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::cli {

inline const std::string kCapstan = CAPSTAN_TEST_BUILD_DIR "/bin/capstan";
inline const std::string kEngine = CAPSTAN_TEST_BUILD_DIR "/libexec/capstan-engine";
inline const std::string kConformance = CAPSTAN_TEST_BUILD_DIR "/libexec/capstan-conformance";

/// Runs capstan in a folder of the test's own.
inline ProcessResult run_capstan(const TemporaryFolder& folder, std::vector<std::string> words,
                                 ProcessOptions options = {}) {
  words.insert(words.begin(), kCapstan);
  options.folder = folder.path();
  return run_process(words, options);
}

/// Text that a small model can learn: 4,000 words out of a few.
inline std::string some_text() {
  static constexpr const char* kWords[] = {"the ", "drum ", "turns ", "and ", "hauls ", "a ", "rope ", "steadily. "};
  std::string text;
  unsigned state = 1;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += kWords[state >> 29];
  }
  return text;
}

}  // namespace capstan::cli
