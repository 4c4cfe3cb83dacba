#include "core/registry/build_id.hpp"

#include <elf.h>

#include <cstring>

#include "core/errors.hpp"
#include "core/registry/manifest.hpp"

namespace capstan {

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

}  // namespace capstan
