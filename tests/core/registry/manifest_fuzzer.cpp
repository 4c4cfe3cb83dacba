// What is read from a plugin's file before anything of it is loaded, for libFuzzer and for manifest_replay_test.
//
// The first byte picks the reader: 'm' a manifest, 'e' an ELF file. A reader returns or throws PluginError; anything
// else is a bug. scripts/fuzz looks for inputs.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/errors.hpp"
#include "core/registry/manifest.hpp"

namespace capstan {
namespace {

void read_manifest(std::string_view text) {
  const PluginManifest manifest = PluginManifest::parse(text, "file");
  // What was accepted can be shown, and says of itself what it was read as.
  const Json json = manifest.to_json();
  if (json.at("components").size() != manifest.components.size() || json.dump().empty()) std::abort();
}

void read_elf(std::string_view bytes) {
  static const int file = ::memfd_create("plugin", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (::ftruncate(file, 0) != 0) std::abort();
  if (::pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  if (read_elf_section(path, ".capstan.manifest").size() > bytes.size()) std::abort();
}

}  // namespace
}  // namespace capstan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.front() == 'm') capstan::read_manifest(input.substr(1));
    if (input.front() == 'e') capstan::read_elf(input.substr(1));
  } catch (const capstan::PluginError&) {
  }
  return 0;
}
