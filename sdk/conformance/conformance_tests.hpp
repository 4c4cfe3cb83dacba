#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "sdk/conformance/conformance.hpp"

/// The conformance kit as GoogleTest tests, one a case:
///
///   int main(int argc, char** argv) {
///     testing::InitGoogleTest(&argc, argv);
///     capstan::conformance::register_tests("build/lib/capstan/plugins/optimizers/libcapstan_acme_signum.so");
///     return RUN_ALL_TESTS();
///   }
namespace capstan::conformance {

class CaseTest : public ::testing::Test {
 public:
  CaseTest(std::filesystem::path plugin, Options options) : plugin_(std::move(plugin)), options_(std::move(options)) {}

  void TestBody() override {
    for (const Result& result : check(plugin_, options_)) {
      if (result.name != options_.only) continue;  // `only` is part of other names as well
      if (result.outcome == Outcome::kSkipped) GTEST_SKIP() << result.text;
      EXPECT_NE(result.outcome, Outcome::kFailed) << line(result, plugin_, options_);
    }
  }

 private:
  std::filesystem::path plugin_;
  Options options_;
};

inline void register_tests(const std::filesystem::path& plugin, const Options& options = {}) {
  for (const CaseName& test : cases(plugin)) {
    Options alone = options;
    alone.only = test.name;
    ::testing::RegisterTest(plugin.stem().c_str(), test.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [plugin, alone]() -> CaseTest* { return new CaseTest(plugin, alone); });
  }
}

}  // namespace capstan::conformance
