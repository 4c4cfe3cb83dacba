#include "tests/core/config/config_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace capstan::testing {
namespace {

std::vector<std::string> case_files() {
  std::vector<std::string> files;
  const auto folder = configs_folder() / "cases";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(std::filesystem::relative(entry.path(), folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class ConfigCases : public ::testing::TestWithParam<std::string> {};

TEST_P(ConfigCases, HasTheEffectThatItsFileStates) {
  EXPECT_EQ(differences(ConfigCase::read(configs_folder() / "cases" / GetParam())), "");
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(0, info.param.rfind('.'));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, ConfigCases, ::testing::ValuesIn(case_files()), test_name);

}  // namespace
}  // namespace capstan::testing
