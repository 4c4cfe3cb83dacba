#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "sdk/conformance/conformance_tests.hpp"

/// A plugin for GPUs whose libraries this machine lacks; says so.
bool lacks_cuda(const std::filesystem::path& plugin) {
  if (plugin.filename().string().find("_cuda") == std::string::npos) return false;
  if (void* handle = dlopen(plugin.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(handle);
    return false;
  }
  const char* why = dlerror();
  if (std::strstr(why, "cannot open shared object file") == nullptr) return false;
  std::printf("left out, since its libraries are not here: %s\n", why);
  return true;
}

/// Every plugin of this tree keeps to the rules that we ask of others.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::vector<std::filesystem::path> plugins;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins")) {
    if (entry.path().extension() == ".so" && !lacks_cuda(entry.path())) plugins.push_back(entry.path());
  }
  std::sort(plugins.begin(), plugins.end());
  for (const auto& plugin : plugins) capstan::conformance::register_tests(plugin, {.timeout_s = 300});
  return RUN_ALL_TESTS();
}
