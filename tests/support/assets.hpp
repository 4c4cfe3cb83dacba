#pragma once

#include <unistd.h>

#include <string>

namespace capstan::test {

inline constexpr const char* kNoAssets = "no .venv-assets: scripts/setup --assets makes it";

/// The folder of an environment with packages that carry real vocabularies and weights; empty where there is none:
/// tests skip then.
inline std::string assets_folder() {
  // scripts/setup writes this file when all packages are there.
  const bool installed = ::access(CAPSTAN_TEST_SOURCE_DIR "/.venv-assets/installed", F_OK) == 0;
  return installed ? CAPSTAN_TEST_SOURCE_DIR "/.venv-assets" : "";
}

}  // namespace capstan::test
