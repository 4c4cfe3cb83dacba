#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstring>
#include <string_view>

#include "core/registry/registry.hpp"

namespace capstan {
namespace {

std::string hex(const unsigned char* bytes, std::size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

/// The build id in one segment of notes that is mapped into this process.
std::string build_id_in(const char* notes, std::size_t bytes) {
  const auto padded = [](std::size_t size) { return (size + 3) & ~std::size_t{3}; };
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof note);
    const std::size_t whole = sizeof note + padded(note.n_namesz) + padded(note.n_descsz);
    if (whole > bytes) break;
    const char* name = notes + sizeof note;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
      return hex(reinterpret_cast<const unsigned char*>(name + padded(note.n_namesz)), note.n_descsz);
    }
    notes += whole;
    bytes -= whole;
  }
  return "";
}

int visit_library(dl_phdr_info* info, std::size_t, void* out) {
  const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
  if (path.substr(path.rfind('/') + 1) != "libc10.so") return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    auto& build_id = *static_cast<std::string*>(out);
    build_id = build_id_in(reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr), segment.p_memsz);
    if (!build_id.empty()) return 1;
  }
  return 1;
}

}  // namespace

TorchIdentity running_torch() {
  TorchIdentity torch;
  // Asked of the process, not of the headers: what was compiled against and what runs may differ.
  const auto abi_version = reinterpret_cast<std::uint64_t (*)()>(::dlsym(RTLD_DEFAULT, "aoti_torch_abi_version"));
  if (!abi_version) return torch;
  const std::uint64_t version = abi_version();
  torch.version = std::to_string(version >> 56 & 255) + "." + std::to_string(version >> 48 & 255) + "." +
                  std::to_string(version >> 40 & 255);
  ::dl_iterate_phdr(&visit_library, &torch.build_id);
  return torch;
}

}  // namespace capstan
