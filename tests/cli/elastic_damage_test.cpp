// Snapshots of an elastic launch that are damaged when the next one comes to take the run over.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/elastic/snapshot_segment.hpp"
#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// What a launch has left behind, as the next one will find it.
class ElasticDamage : public Elastic {
 protected:
  /// The folder of a launch all of whose processes were killed at once.
  fs::path killed(const std::vector<std::string>& words) const {
    ElasticRun run(folder_, {"--elastic", "2:2"}, words);
    EXPECT_TRUE(run.await(30));
    run.send(SIGSTOP);  // so that it replaces nobody
    for (const std::size_t rank : {0, 1}) run.kill_rank(rank);
    const fs::path left = run.folder()->path();
    run.send(SIGKILL);
    run.wait();
    return left;
  }
  /// Steps of the sealed snapshots of a member, the newest first.
  static std::vector<SealedSegment> snapshots_of(const fs::path& left, const std::string& member) {
    std::vector<SealedSegment> found;
    for (const char* which : {".0", ".1"}) {
      if (auto segment = SealedSegment::read(left / "snapshots" / ("member-" + member + which))) {
        found.push_back(std::move(*segment));
      }
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.facts().step > b.facts().step; });
    return found;
  }
  static void flip_a_bit(const SealedSegment& segment) {
    const auto at = segment.data().data() + segment.data().size() / 2 - segment.bytes().data();
    std::fstream file(segment.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 16));
  }
};

TEST_F(ElasticDamage, IsNamedAndTheOlderSnapshotTaken) {
  const std::vector<std::string> words = train("damaged", kEndless);
  const fs::path left = killed(words);
  const auto of_0 = snapshots_of(left, "0"), of_1 = snapshots_of(left, "1");
  ASSERT_EQ(of_0.size() + of_1.size(), 4u);
  ASSERT_EQ(of_0[1].facts().step, of_1[1].facts().step);
  flip_a_bit(of_1[0]);
  ElasticRun again(folder_, {"--elastic", "2:2"}, words);
  ASSERT_TRUE(again.await(0, 2));
  const ProcessResult result = end_and_compare(again, "damaged", "2");
  EXPECT_THAT(result.err, HasSubstr("is damaged: it does not match its checksum. The snapshot of step " +
                                    std::to_string(of_1[0].facts().step) + " is not used."));
  EXPECT_THAT(result.out, HasSubstr("generation 2: 2 processes go on from step " +
                                    std::to_string(of_1[1].facts().step) + " (all processes and their launcher"));
}

TEST_F(ElasticDamage, OfAllSnapshotsMakesTheRunGoOnFromTheCheckpointThatItHasSaved) {
  const std::vector<std::string> words = train("damaged", kEndless, {"--save-every", "10"});
  const fs::path left = killed(words);
  const fs::path latest = folder_ / "damaged-ck/latest";
  ASSERT_TRUE(fs::exists(latest));
  for (const char* member : {"0", "1"}) {
    for (const SealedSegment& segment : snapshots_of(left, member)) flip_a_bit(segment);
  }
  ElasticRun again(folder_, {"--elastic", "2:2"}, words);
  ASSERT_TRUE(again.await(0, 2));
  const ProcessResult result = end_and_compare(again, "damaged", "2");
  EXPECT_THAT(
      result.err,
      HasSubstr("no snapshot of the run can be used: it goes on from the newest checkpoint that it has saved."));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("resumed from damaged-ck/global_step[0-9]+0 at step"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("generation 2: 2 processes go on from step [0-9]+0 .all processes"));
}

}  // namespace
}  // namespace capstan::cli
