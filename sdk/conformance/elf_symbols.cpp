#include "sdk/conformance/elf_symbols.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "core/registry/manifest.hpp"

namespace capstan::conformance {
namespace {

template <class Entry>
std::vector<Entry> entries(const std::string& bytes) {
  std::vector<Entry> table(bytes.size() / sizeof(Entry));
  std::memcpy(table.data(), bytes.data(), table.size() * sizeof(Entry));
  return table;
}

std::string name_at(const std::string& names, std::uint64_t offset) {
  return offset < names.size() ? std::string(names.c_str() + offset) : "";
}

}  // namespace

DynamicTables read_dynamic_tables(const std::filesystem::path& library) {
  DynamicTables tables;
  const std::string names = read_elf_section(library, ".dynstr");
  for (const auto& symbol : entries<Elf64_Sym>(read_elf_section(library, ".dynsym"))) {
    const std::string name = name_at(names, symbol.st_name);
    if (name.empty() || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
    (symbol.st_shndx == SHN_UNDEF ? tables.undefined : tables.exported).push_back(name);
  }
  std::sort(tables.exported.begin(), tables.exported.end());
  std::sort(tables.undefined.begin(), tables.undefined.end());
  for (const auto& entry : entries<Elf64_Dyn>(read_elf_section(library, ".dynamic"))) {
    if (entry.d_tag == DT_RUNPATH || entry.d_tag == DT_RPATH) tables.run_path = name_at(names, entry.d_un.d_val);
  }
  return tables;
}

}  // namespace capstan::conformance
