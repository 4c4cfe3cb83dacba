#include "tests/sdk/abi_layout.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

namespace capstan {
namespace {

std::set<std::string> lines_of(std::istream& in) {
  std::set<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

std::set<std::string> layout() {
  std::stringstream out;
  print_abi_layout(out);
  return lines_of(out);
}

TEST(AbiLayout, KeepsEveryRecordedFieldWhereItWas) {
  const auto now = layout();
  for (unsigned minor = 0; minor <= CAPSTAN_ABI_MINOR; ++minor) {
    const std::string version = std::to_string(CAPSTAN_ABI_MAJOR) + "." + std::to_string(minor);
    std::ifstream recorded(CAPSTAN_TEST_SOURCE_DIR "/sdk/abi/v" + version + ".layout");
    ASSERT_TRUE(recorded) << version;
    for (const auto& line : lines_of(recorded)) {
      EXPECT_TRUE(now.contains(line)) << "changed or gone since " << version << ": " << line
                                      << "\nFields are only ever appended (sdk/abi/README.md).";
    }
  }
}

TEST(AbiLayout, RecordsEveryFieldOfTheHeader) {
  std::ifstream header(CAPSTAN_TEST_SOURCE_DIR "/sdk/include/capstan/plugin.h");
  const std::string text{std::istreambuf_iterator<char>(header), {}};
  const auto lines = layout();
  // Functions of the tables, by their form: a field that is missing here would not be guarded.
  std::set<std::string> recorded;
  for (const auto& line : lines) recorded.insert(line.substr(line.find('.') + 1, line.find(' ') - line.find('.') - 1));
  std::size_t functions = 0;
  for (auto at = text.find("(*"); at != std::string::npos; at = text.find("(*", at + 2)) {
    const std::string name = text.substr(at + 2, text.find(')', at) - at - 2);
    if (name == "take" || name == "given_up") continue;  // parameters
    ++functions;
    EXPECT_TRUE(recorded.contains(name)) << name;
  }
  EXPECT_GT(functions, 50u);
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--print") {
    capstan::print_abi_layout(std::cout);
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
