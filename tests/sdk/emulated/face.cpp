#include "tests/sdk/emulated/face.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace capstan::test {
namespace {

std::string load() {
  const char* asked = std::getenv("CAPSTAN_TEST_FACE");
  const std::string face = asked != nullptr ? asked : "cuda";
  const std::string file =
      CAPSTAN_TEST_BUILD_DIR "/lib/capstan/emulated/libcapstan_accelerator_emulated_" + face + ".so";
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(dlerror());
  return face;
}

// Before main(): LibTorch looks for devices once in a process, at the first backward for instance.
const std::string g_face = load();

}  // namespace

torch::Device device(int index) { return torch::Device(g_face + ":" + std::to_string(index)); }

}  // namespace capstan::test
