#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/comm/watchdog.hpp"

namespace capstan {
namespace {

Whereabouts at(std::uint64_t call, const std::string& name, bool inside, double seconds, std::uint64_t bytes = 2048) {
  return {.call = call, .name = name, .bytes = bytes, .inside = inside, .seconds = seconds, .gone = ""};
}

TEST(Whereabouts, SurviveTheirText) {
  Whereabouts one = at(57, "step 12, gradient bucket 3", true, 1.5, 1234);
  one.gone = "two\nlines";
  one.listening = true;
  const Whereabouts back = Whereabouts::parse(one.text());
  EXPECT_EQ(back.call, 57u);
  EXPECT_EQ(back.name, one.name);
  EXPECT_EQ(back.bytes, 1234u);
  EXPECT_TRUE(back.inside);
  EXPECT_TRUE(back.listening);
  EXPECT_EQ(back.seconds, 1.5);
  EXPECT_EQ(back.gone, "two\nlines");
}

TEST(Whereabouts, AreATableOfWhoIsWhere) {
  Whereabouts gone = at(3, "norm", false, 1);
  gone.gone = "no memory";
  EXPECT_EQ(whereabouts_table({at(57, "step 12, norm", true, 12.25), at(56, "step 12, bucket 0", false, 3.04, 5 << 20),
                               gone, Whereabouts{}}),
            "\n  rank 0  is in 'step 12, norm' (call 57, 2.05 kB) for 12 s"
            "\n  rank 1  computes for 3.0 s; its last was 'step 12, bucket 0' (call 56, 5.24 MB)"
            "\n  rank 2  stopped: no memory"
            "\n  rank 3  has been in no collective yet");
}

TEST(Whereabouts, ShowARankInAnotherCollective) {
  const auto here = at(57, "step 12, norm", true, 2);
  EXPECT_EQ(mismatch({here, here}, 0), "");
  EXPECT_EQ(mismatch({here, at(56, "step 12, bucket 0", true, 2)}, 0), "") << "it is only behind";
  EXPECT_EQ(mismatch({here, at(57, "save_checkpoint global_step12", true, 1)}, 0),
            "rank 1 is in another one, 'save_checkpoint global_step12'");
}

TEST(Whereabouts, SayWhatHelpsWhereRanksGatherOtherParameters) {
  const auto here = at(57, "step 0, gather of moe.experts.2.weight", true, 2);
  EXPECT_EQ(
      mismatch({here, at(57, "step 0, gather of moe.experts.3.weight", true, 1)}, 0),
      "rank 1 is in another one, 'step 0, gather of moe.experts.3.weight'. Where ranks use other parameters in one "
      "step (experts without tokens), set zero_optimization.stage3_param_persistence_threshold above the number "
      "of elements of the largest of them, or use stage 2");
}

TEST(Whereabouts, ShowARankWithAnotherShape) {
  EXPECT_EQ(mismatch({at(7, "broadcast", true, 2, 4096), at(7, "broadcast", true, 2, 4000)}, 1),
            "rank 0 exchanges 4096 bytes in it, rank 1 4000: their tensors differ in shape");
}

TEST(Whereabouts, ShowARankThatWillNotCome) {
  Whereabouts finished = at(56, "step 12, bucket 0", false, 1);
  finished.gone = "finished";
  EXPECT_EQ(mismatch({at(57, "step 12, norm", true, 2), finished}, 0), "rank 1 has finished without it");
  finished.gone = "disk full.";
  EXPECT_EQ(mismatch({at(57, "step 12, norm", true, 2), finished}, 0), "rank 1 stopped: disk full.");
  finished.call = 57;
  EXPECT_EQ(mismatch({at(57, "step 12, norm", true, 2), finished}, 0), "") << "it was there, and sent its part";
}

}  // namespace
}  // namespace capstan
