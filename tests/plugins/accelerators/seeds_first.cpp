// A program that seeds LibTorch before Capstan has loaded what a GPU needs.

#include <ATen/Context.h>

#include <iostream>

#include "core/engine/initialize.hpp"
#include "core/memory/plugin_accelerator.hpp"

int main() {
  using namespace capstan;
  at::manual_seed(1);
  try {
    const PluginIndex plugins = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins", "the build"}});
    Registry registry(plugins);
    PluginAccelerator(registry.create("device", "accelerator", "cuda", Json::object(), model_host()), 0);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
