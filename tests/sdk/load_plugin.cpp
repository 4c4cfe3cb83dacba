#include <ATen/Version.h>

#include <iostream>

#include "core/registry/host.hpp"
#include "core/registry/registry.hpp"

/// load_plugin FILE: creates each of its components with the defaults of its parameters.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    at::show_config();  // needs LibTorch, so that this process runs it
    const capstan::PluginIndex index = capstan::PluginIndex::of({capstan::read_plugin(argv[1])});
    const capstan_host host = capstan::make_host();
    capstan::Registry registry(index);
    for (const auto& component : index.plugins().front().manifest.components) {
      capstan::Json params = capstan::Json::object();
      for (const auto& spec : component.params) {
        if (spec.fallback) params[spec.name] = *spec.fallback;
      }
      registry.create("test", component.kind, component.type, params, &host);
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
