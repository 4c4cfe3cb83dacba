#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plugins/monitors/monitor_plugin.hpp"
#include "tests/plugins/monitors/tracker_python.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

class TensorboardMonitorTest : public ::testing::Test {
 protected:
  void SetUp() override { CAPSTAN_NEEDS_TRACKERS(); }
  std::unique_ptr<MonitorPlugin> monitor(const std::string& run_info = R"({"resumed_at": null})") {
    Json params;
    params["output_path"] = folder_.path().string();
    params["job_name"] = "job";
    return std::make_unique<MonitorPlugin>("tensorboard", params, Json::parse(run_info));
  }
  /// As the real TensorBoard reads them, checksums checked.
  Json read() const { return run_reader("read_tensorboard.py", folder_ / "job"); }
  std::filesystem::path event_file() const { return std::filesystem::directory_iterator(folder_ / "job")->path(); }

  TemporaryFolder folder_;
};

TEST_F(TensorboardMonitorTest, TensorBoardReadsScalarsBySamples) {
  auto board = monitor();
  board->write({{"Train/Samples/lr", 0.001, 32, 1700000000.25}, {"Train/Samples/train_loss", 2.5, 32, 1700000000.5}});
  board->write({{"Train/Samples/lr", 0.5, 64, 1700000001.0}});

  const Json scalars = read().at("scalars");
  // 0.001 as the float that TensorBoard keeps.
  EXPECT_EQ(scalars.at("Train/Samples/lr"),
            Json::parse(R"([[32, "0.0010000000474974513", 1700000000.25], [64, "0.5", 1700000001.0]])"));
  EXPECT_EQ(scalars.at("Train/Samples/train_loss"), Json::parse(R"([[32, "2.5", 1700000000.5]])"));
}

TEST_F(TensorboardMonitorTest, TakesEveryNumberAndEveryScript) {
  monitor()->write({{"größe/損失/🚀", 1.0, 1}, {"odd", NAN, 2}, {"odd", INFINITY, 3}, {"odd", -INFINITY, 4}});

  const Json scalars = read().at("scalars");
  EXPECT_EQ(scalars.at("größe/損失/🚀").size(), 1u);
  EXPECT_EQ(scalars.at("odd"), Json::parse(R"([[2, "nan", 0.0], [3, "inf", 0.0], [4, "-inf", 0.0]])"));
}

TEST_F(TensorboardMonitorTest, BeginsWithTheRecordThatTheFormatAsksFor) {
  monitor();
  const std::string bytes = read_bytes(event_file());

  // 8 bytes of length and 4 of checksum; then field 1 (double) and field 3 (text) of an Event.
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]), 24u);
  EXPECT_EQ(bytes[12], '\x09');
  EXPECT_EQ(bytes.substr(21, 15),
            "\x1a\x0d"
            "brain.Event:2");
  EXPECT_THAT(event_file().filename().string(), StartsWith("events.out.tfevents."));
}

TEST_F(TensorboardMonitorTest, HoldsTheChecksumOfEachPart) {
  // Checked by TensorBoard's own reader: one bit in a value, and the record is refused.
  monitor()->write({{"loss", 1.0, 1}});
  std::string bytes = read_bytes(event_file());
  ASSERT_EQ(read().at("scalars").size(), 1u);
  bytes[bytes.find("loss")] ^= 1;
  write_bytes(event_file(), bytes);

  EXPECT_EQ(read().at("scalars").size(), 0u);
}

TEST_F(TensorboardMonitorTest, RecordsAreInTheFileWhenWriteReturns) {
  auto board = monitor();
  board->write({{"loss", 3.0, 1}});

  EXPECT_EQ(read().at("scalars").at("loss").size(), 1u);
}

TEST_F(TensorboardMonitorTest, ShowsTheConfigurationAsTextAndAsHparams) {
  {
    auto board = monitor(R"({"resumed_at": null, "config_text": "{\n  \"fp16\": {}\n}",
      "hparams": [["optimizer.type", "AdamW", "string"], ["optimizer.params.lr", 0.001, "number"],
                  ["fp16.enabled", true, "boolean"]]})");
    board->close();
  }

  const Json board = read();
  EXPECT_EQ(board.at("text").at("configuration/text_summary").as_array().front().as_string(),
            "    {\n      \"fp16\": {}\n    }");
  EXPECT_EQ(board.at("hparams"),
            Json::parse(R"({"optimizer.type": "AdamW", "optimizer.params.lr": 0.001, "fp16.enabled": true})"));
  EXPECT_EQ(board.at("group"), Json("job"));
  EXPECT_EQ(board.at("ends"), Json(1));
}

TEST_F(TensorboardMonitorTest, ShowsTextsOfTheModelBySamples) {
  monitor()->text({{"Train/Samples/generated_1", "To be", " or\nnot", 0, 0, 1.0},
                   {"Train/Samples/generated_1", "To be", " *ü*", 4, 32, 2.0},
                   {"Train/Samples/generated_2", "", "x", 4, 32, 2.0}});

  const Json text = read().at("text");
  EXPECT_EQ(text.at("Train/Samples/generated_1/text_summary"),
            Json::parse(R"(["    To be\n\n→\n\n     or\n    not", "    To be\n\n→\n\n     *ü*"])"));
  EXPECT_EQ(text.at("Train/Samples/generated_2/text_summary"), Json::parse(R"(["    \n\n→\n\n    x"])"));
}

TEST_F(TensorboardMonitorTest, AResumedRunTakesBackWhatLiesBeyondItsBeginning) {
  monitor()->write({{"loss", 3.0, 8, 1.0}, {"loss", 2.0, 16, 2.0}, {"loss", 9.0, 24, 3.0}});
  monitor(R"({"resumed_at": 16})")->write({{"loss", 1.0, 24, 4.0}});

  EXPECT_EQ(read().at("scalars").at("loss"), Json::parse(R"([[8, "3.0", 1.0], [16, "2.0", 2.0], [24, "1.0", 4.0]])"));
}

TEST_F(TensorboardMonitorTest, SaysWhyItsFolderCannotBeMade) {
  write_bytes(folder_ / "job", "a file where the folder should be");

  EXPECT_THAT([&] { monitor(); }, ThrowsMessage<PluginError>(HasSubstr((folder_ / "job").string())));
}

}  // namespace
}  // namespace capstan::test
