#include "cli/interrupt.hpp"

#include <gtest/gtest.h>

namespace capstan::cli {
namespace {

TEST(InterruptedText, TellsHowToContinueWhereStepsAreLeft) {
  EXPECT_EQ(interrupted_text({1234, 5000, "ckpt", true}),
            "interrupted after step 1,234 of 5,000. Continue with --resume ckpt");
  EXPECT_EQ(interrupted_text({7, 40, "", false}),
            "interrupted after step 7 of 40. Nothing was saved: --save is not given.");
}

TEST(InterruptedText, TellsThatNothingIsLeftAfterTheLastStep) {
  EXPECT_EQ(interrupted_text({40, 40, "ckpt", false}),
            "interrupted after step 40 of 40, the last one: nothing is left to train.");
  EXPECT_EQ(interrupted_text({40, 40, "ckpt", true}),
            "interrupted after step 40 of 40, the last one: nothing is left to train. The evaluation at the end was "
            "left out: 'capstan eval --checkpoint ckpt' makes it up.");
  EXPECT_EQ(interrupted_text({40, 40, "", true}),
            "interrupted after step 40 of 40. Nothing was saved: --save is not given.");
}

}  // namespace
}  // namespace capstan::cli
