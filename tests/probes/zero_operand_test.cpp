#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/probes/probe_run.hpp"

namespace capstan {
namespace {

using testing::ProbeRun;

/// Which precision the model computes in, as members of the file.
class ZeroOperandProbe : public ::testing::TestWithParam<const char*> {};

/// With a head of zeros all 256 bytes are equally likely, whatever else the model holds.
TEST_P(ZeroOperandProbe, RewritesTheParameterThatItNames) {
  ProbeRun run(R"("observers": [{"type": "ZeroOperand", "params": {"parameter": "head.weight"}}])", GetParam());
  EXPECT_NEAR(run.step(), std::log(256), 1e-6);
}

TEST_P(ZeroOperandProbe, LeavesOthersAsTheyAre) {
  ProbeRun run(R"("observers": [{"type": "ZeroOperand", "params": {"parameter": "no.such"}}])", GetParam());
  ProbeRun plain("", GetParam());
  const double loss = plain.step();
  EXPECT_GT(std::abs(loss - std::log(256)), 1e-4);
  EXPECT_EQ(run.step(), loss);
}

INSTANTIATE_TEST_SUITE_P(Precisions, ZeroOperandProbe,
                         ::testing::Values("", R"("bf16": {"enabled": true})",
                                           R"("fp16": {"enabled": true, "loss_scale": 128})"));

}  // namespace
}  // namespace capstan
