#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace capstan::test {

/// A program of .venv-readers, the environment with the packages for Python by which tests read what Capstan writes; or
/// the one that the environment variable names instead. Empty where there is none: tests skip then.
inline std::string reader_program(const std::string& name, const char* variable) {
  if (const char* const named = std::getenv(variable)) return named;
  // scripts/setup writes this file when all packages are there.
  const bool installed = ::access(CAPSTAN_TEST_SOURCE_DIR "/.venv-readers/installed", F_OK) == 0;
  return installed ? CAPSTAN_TEST_SOURCE_DIR "/.venv-readers/bin/" + name : "";
}

inline std::string reader_python() { return reader_program("python", "CAPSTAN_READERS_PYTHON"); }

/// The Python of .venv-arrow, which has pyarrow; empty where there is none: tests skip then.
inline std::string arrow_python() {
  const bool installed = ::access(CAPSTAN_TEST_SOURCE_DIR "/.venv-arrow/installed", F_OK) == 0;
  return installed ? CAPSTAN_TEST_SOURCE_DIR "/.venv-arrow/bin/python" : "";
}

inline constexpr const char* kNoArrow = "no .venv-arrow: scripts/setup --arrow makes it";
inline constexpr const char* kNoReaders = "no .venv-readers: scripts/setup --readers makes it";

}  // namespace capstan::test
