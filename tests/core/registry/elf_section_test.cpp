#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "core/errors.hpp"
#include "core/registry/manifest.hpp"
#include "tests/core/registry/test_plugins.hpp"

namespace capstan {
namespace {

using ::testing::StartsWith;

constexpr std::string_view kSection = ".capstan.manifest";

std::string refusal(const std::filesystem::path& file) {
  try {
    read_elf_section(file, kSection);
  } catch (const PluginError& error) {
    const std::string opening = file.string() + ": ";
    EXPECT_THAT(error.what(), StartsWith(opening));
    return std::string(error.what()).substr(opening.size());
  }
  return "accepted";
}

class ElfSection : public ::testing::Test {
 protected:
  std::string refusal_of_bytes(const std::string& bytes) {
    std::filesystem::remove(folder_ / "x.so");  // replacing the bytes of a file waits for the disk
    write_bytes(folder_ / "x.so", bytes);
    return refusal(folder_ / "x.so");
  }

  Elf64_Ehdr header() const {
    Elf64_Ehdr header;
    std::memcpy(&header, plugin_.data(), sizeof header);
    return header;
  }
  std::string with_header(const Elf64_Ehdr& header) const {
    std::string bytes = plugin_;
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
  }

  TemporaryFolder folder_;
  std::string plugin_ = read_bytes(test_plugin("test_plain"));
};

TEST_F(ElfSection, ReadsTheManifestWithoutLoadingTheFile) {
  const std::string text = read_elf_section(test_plugin("test_plain"), kSection);

  EXPECT_THAT(text, StartsWith("schema = 1\nname = \"test-plain\"\n"));
  EXPECT_EQ(text.back(), '\0');
}

TEST_F(ElfSection, TellsALibraryThatIsNoPlugin) {
  EXPECT_EQ(refusal(std::filesystem::path(CAPSTAN_TEST_BUILD_DIR) / "tests/registry_plugins/libcapstan_test_bar.so"),
            "not a Capstan plugin (no .capstan.manifest section). Was it built with capstan_add_plugin()?");
}

TEST_F(ElfSection, TellsAFileThatIsNotElf) {
  EXPECT_EQ(refusal_of_bytes("#!/bin/sh\necho hello, this is no library\n"), "not a shared library (no ELF header).");
  EXPECT_EQ(refusal_of_bytes(""), "not a shared library (no ELF header).");
}

TEST_F(ElfSection, TellsAnotherMachine) {
  Elf64_Ehdr header = this->header();
  header.e_machine = EM_RISCV;
  EXPECT_THAT(refusal_of_bytes(with_header(header)), StartsWith("not built for this machine: it is for RISC-V, this "));
  header.e_machine = 4711;
  EXPECT_THAT(refusal_of_bytes(with_header(header)),
              StartsWith("not built for this machine: it is for ELF machine 4711, this machine is "));
  header = this->header();
  header.e_ident[EI_CLASS] = ELFCLASS32;
  EXPECT_THAT(refusal_of_bytes(with_header(header)), StartsWith("not built for this machine: it is 32-bit or "));
}

TEST_F(ElfSection, TellsAnotherTypeOfElfFile) {
  Elf64_Ehdr header = this->header();
  header.e_type = ET_REL;
  EXPECT_EQ(refusal_of_bytes(with_header(header)), "not a shared library (an ELF file of another type).");
}

TEST_F(ElfSection, TellsATruncatedFileAtEveryLength) {
  for (std::size_t length = 16; length < plugin_.size(); length += 1 + length / 50) {
    EXPECT_EQ(refusal_of_bytes(plugin_.substr(0, length)),
              "truncated or damaged: its ELF header speaks of bytes beyond its " + std::to_string(length) +
                  ". Copy or build it again.");
  }
}

TEST_F(ElfSection, TellsSectionTablesThatLie) {
  for (const std::uint64_t offset : {std::uint64_t{UINT64_MAX}, std::uint64_t{UINT64_MAX - 63}, std::uint64_t{1} << 63,
                                     std::uint64_t{plugin_.size()}, std::uint64_t{plugin_.size() - 1}}) {
    Elf64_Ehdr header = this->header();
    header.e_shoff = offset;
    EXPECT_THAT(refusal_of_bytes(with_header(header)), StartsWith("truncated or damaged: "));
  }
  Elf64_Ehdr header = this->header();
  header.e_shstrndx = header.e_shnum;
  EXPECT_THAT(refusal_of_bytes(with_header(header)), StartsWith("truncated or damaged: "));
  header = this->header();
  header.e_shentsize = 1;
  EXPECT_THAT(refusal_of_bytes(with_header(header)), StartsWith("truncated or damaged: "));
}

TEST_F(ElfSection, TellsWhatIsNoRegularFile) {
  EXPECT_EQ(refusal(folder_.path()), "not a regular file.");
  EXPECT_EQ(refusal(folder_ / "absent.so"), "cannot be opened: No such file or directory.");
  ASSERT_EQ(::mkfifo((folder_ / "pipe.so").c_str(), 0600), 0);
  EXPECT_EQ(refusal(folder_ / "pipe.so"), "not a regular file.");
}

TEST_F(ElfSection, SurvivesDamagedHeadersAndTables) {
  std::mt19937 random(11);
  const Elf64_Ehdr header = this->header();
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = plugin_;
    for (unsigned i = 0; i < 1 + random() % 4; ++i) {
      const bool in_header = random() % 3 == 0;
      const std::size_t place = in_header ? 16 + random() % (sizeof(Elf64_Ehdr) - 16)
                                          : header.e_shoff + random() % (header.e_shnum * sizeof(Elf64_Shdr));
      bytes[place] = static_cast<char>(random());
    }
    refusal_of_bytes(bytes);
  }
}

}  // namespace
}  // namespace capstan
