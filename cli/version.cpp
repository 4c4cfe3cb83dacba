#include "cli/version.hpp"

#include <elf.h>

#include <cstring>

#include "capstan/plugin.h"
#include "cli/torch_folder.hpp"
#include "core/errors.hpp"
#include "core/registry/manifest.hpp"

namespace capstan::cli {

BuiltWith built_with() {
  return {CAPSTAN_VERSION, CAPSTAN_TORCH_VERSION, CAPSTAN_TORCH_LIB_DIR, CAPSTAN_TORCH_BUILD_ID};
}

std::string build_id_of(const std::string& file) {
  std::string note;
  try {
    note = read_elf_section(file, ".note.gnu.build-id");
  } catch (const PluginError&) {
    return "";
  }
  Elf64_Nhdr header;
  if (note.size() < sizeof header) return "";
  std::memcpy(&header, note.data(), sizeof header);
  const std::size_t begin = sizeof header + (header.n_namesz + 3) / 4 * 4;
  if (begin > note.size() || header.n_descsz > note.size() - begin) return "";
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : note.substr(begin, header.n_descsz)) {
    text += {kDigits[(byte >> 4) & 15], kDigits[byte & 15]};
  }
  return text;
}

std::string version_text() {
  const BuiltWith built = built_with();
  std::string text = std::string("Capstan ") + built.capstan_version + "\nplugin ABI " +
                     std::to_string(CAPSTAN_ABI_MAJOR) + "." + std::to_string(CAPSTAN_ABI_MINOR) + "\n";
  try {
    const std::string folder = torch_lib_dir();
    return text + "LibTorch " + built.torch_version + " (build " + built.torch_build_id + ") in " + folder;
  } catch (const RuntimeFault& missing) {
    return text + missing.what();
  }
}

}  // namespace capstan::cli
