#include <gtest/gtest.h>

#include <capstan/sdk/conformance/conformance_tests.hpp>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  capstan::conformance::register_tests(PLUGIN);
  return RUN_ALL_TESTS();
}
