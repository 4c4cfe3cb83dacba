#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/errors.hpp"
#include "core/registry/manifest.hpp"

namespace capstan {
namespace {

#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
constexpr const char* kMachineName = "AArch64";
#else
#error "Name this machine's ELF number here."
#endif

// More than any of them needs: a section or a table of names beyond it is a broken file.
constexpr std::uint64_t kMaxSectionBytes = 16 << 20;
constexpr std::uint64_t kMaxSections = 1 << 16;

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "AArch64";
    case EM_386:
      return "32-bit x86";
    case EM_ARM:
      return "32-bit ARM";
    case EM_PPC64:
      return "POWER";
    case EM_RISCV:
      return "RISC-V";
    default:
      return "ELF machine " + std::to_string(machine);
  }
}

/// An open file that is read by position; what lies outside it is an error, never undefined.
class ElfFile {
 public:
  explicit ElfFile(const std::filesystem::path& path) : path_(path.string()) {
    // O_NONBLOCK: a FIFO must not make us wait for a writer.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) fail(std::string("cannot be opened: ") + std::strerror(errno) + ".");
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd_);
      fail("not a regular file.");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~ElfFile() { ::close(fd_); }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  [[noreturn]] void fail(const std::string& message) const { throw PluginError(path_ + ": " + message); }

  [[noreturn]] void fail_truncated() const {
    fail("truncated or damaged: its ELF header speaks of bytes beyond its " + std::to_string(size_) +
         ". Copy or build it again.");
  }

  void read(void* to, std::uint64_t bytes, std::uint64_t offset) const {
    if (offset > size_ || bytes > size_ - offset) fail_truncated();
    for (std::uint64_t done = 0; done < bytes;) {
      const ssize_t n = ::pread(fd_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(std::string("cannot be read: ") + std::strerror(errno) + ".");
      if (n == 0) fail_truncated();  // it shrank meanwhile
      done += static_cast<std::uint64_t>(n);
    }
  }

  std::string read_section(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS || section.sh_size > kMaxSectionBytes) fail_truncated();
    if (section.sh_offset > size_ || section.sh_size > size_ - section.sh_offset) fail_truncated();
    std::string bytes(section.sh_size, '\0');
    read(bytes.data(), bytes.size(), section.sh_offset);
    return bytes;
  }

  std::uint64_t size() const { return size_; }

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

Elf64_Ehdr read_header(const ElfFile& file) {
  Elf64_Ehdr header{};
  // The identification first: a shorter file of another sort should be called that, not truncated.
  const auto present = std::min<std::uint64_t>(file.size(), EI_NIDENT);
  file.read(header.e_ident, present, 0);
  if (present < SELFMAG || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    file.fail("not a shared library (no ELF header).");
  }
  if (present == EI_NIDENT && (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)) {
    file.fail(std::string("not built for this machine: it is 32-bit or big-endian, this machine is ") + kMachineName +
              ".");
  }
  file.read(&header, sizeof header, 0);
  if (header.e_machine != kMachine) {
    file.fail("not built for this machine: it is for " + machine_name(header.e_machine) + ", this machine is " +
              kMachineName + ".");
  }
  if (header.e_type != ET_DYN) file.fail("not a shared library (an ELF file of another type).");
  return header;
}

std::vector<Elf64_Shdr> read_section_table(const ElfFile& file, const Elf64_Ehdr& header) {
  if (header.e_shoff == 0) return {};
  if (header.e_shentsize != sizeof(Elf64_Shdr)) file.fail_truncated();
  std::uint64_t count = header.e_shnum;
  if (count == 0) {  // too many for the field: the first entry knows
    Elf64_Shdr first{};
    file.read(&first, sizeof first, header.e_shoff);
    count = first.sh_size;
  }
  if (count > kMaxSections) file.fail_truncated();
  std::vector<Elf64_Shdr> table(count);
  file.read(table.data(), count * sizeof(Elf64_Shdr), header.e_shoff);
  return table;
}

}  // namespace

std::string read_elf_section(const std::filesystem::path& path, std::string_view section) {
  const ElfFile file(path);
  const Elf64_Ehdr header = read_header(file);
  const auto table = read_section_table(file, header);
  if (!table.empty()) {
    const std::uint64_t names_index = header.e_shstrndx == SHN_XINDEX ? table[0].sh_link : header.e_shstrndx;
    if (names_index >= table.size()) file.fail_truncated();
    const std::string names = file.read_section(table[names_index]);
    for (const Elf64_Shdr& entry : table) {
      if (entry.sh_name >= names.size()) continue;
      // c_str(): a name without its closing zero ends with the table.
      if (names.c_str() + entry.sh_name == section) return file.read_section(entry);
    }
  }
  file.fail("not a Capstan plugin (no " + std::string(section) + " section). Was it built with capstan_add_plugin()?");
}

std::vector<std::string> needed_libraries(const std::filesystem::path& file) {
  const std::string dynamic = read_elf_section(file, ".dynamic"), names = read_elf_section(file, ".dynstr");
  std::vector<std::string> libraries;
  for (std::size_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.size(); at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, dynamic.data() + at, sizeof entry);
    if (entry.d_tag == DT_NEEDED && entry.d_un.d_val < names.size()) {
      libraries.emplace_back(names.c_str() + entry.d_un.d_val);
    }
  }
  return libraries;
}

}  // namespace capstan
