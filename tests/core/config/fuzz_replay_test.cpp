#include <gtest/gtest.h>

#include "tests/core/config/config_cases.hpp"
#include "tests/core/config/config_fuzzers.hpp"

namespace capstan::testing {
namespace {

/// Runs a target on every file of its corpus and on every public configuration. Each would abort.
void replay(const char* target, void (*run)(std::string_view)) {
  const auto corpus = std::filesystem::path(CAPSTAN_TEST_SOURCE_DIR) / "tests/core/config/fuzz" / target;
  std::size_t files = 0;
  for (const auto& folder : {corpus, configs_folder() / "wild"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      run(read_text(entry.path()));
      ++files;
    }
  }
  EXPECT_GT(files, 100u);
}

TEST(FuzzReplay, RelaxedJsonKeepsItsInvariants) { replay("json", fuzz_json); }
TEST(FuzzReplay, TomlKeepsItsInvariants) { replay("toml", fuzz_toml); }
TEST(FuzzReplay, TheValidatorKeepsItsInvariants) { replay("validator", fuzz_validator); }

}  // namespace
}  // namespace capstan::testing
