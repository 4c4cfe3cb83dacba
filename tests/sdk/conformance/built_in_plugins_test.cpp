#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "sdk/conformance/conformance_tests.hpp"

/// Every plugin of this tree keeps to the rules that we ask of others.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::vector<std::filesystem::path> plugins;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins")) {
    if (entry.path().extension() == ".so") plugins.push_back(entry.path());
  }
  std::sort(plugins.begin(), plugins.end());
  for (const auto& plugin : plugins) capstan::conformance::register_tests(plugin, {.timeout_s = 300});
  return RUN_ALL_TESTS();
}
