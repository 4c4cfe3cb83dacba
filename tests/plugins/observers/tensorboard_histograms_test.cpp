#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <numeric>

#include "tests/core/engine/small_model.hpp"
#include "tests/plugins/monitors/tracker_python.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::test {
namespace {

using testing_support::SmallRun;

class TensorboardHistogramsTest : public ::testing::Test {
 protected:
  void SetUp() override { CAPSTAN_NEEDS_TRACKERS(); }
  std::string config(const std::string& params) const {
    return R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 0,
      "optimizer": {"type": "SGD", "params": {"lr": 0.125}},
      "capstan": {"observers": [{"type": "tensorboard_histograms", "params": {"job_name": "job", "output_path": ")" +
           folder_.path().string() + "\", " + params + "}}]}}";
  }
  Json read() const { return run_reader("read_tensorboard.py", folder_ / "job/histograms").at("histograms"); }

  TemporaryFolder folder_;
};

/// The sum of one row of read_tensorboard.py: [step, min, max, count, sum, squares, limits, counts].
double counted(const Json& row) {
  double sum = 0;
  for (const Json& count : row.as_array()[7].as_array()) sum += count.as_number();
  return sum;
}

TEST_F(TensorboardHistogramsTest, ShowsWeightsAndGradientsOfEveryIntervalsStep) {
  SmallRun run(config("\"interval\": 2"));
  run.steps(3);
  const at::Tensor before_step_4 = run.model.parameters[0].tensor.detach().clone();
  run.step();

  const Json histograms = read();
  const at::Tensor weight = run.model.parameters[0].tensor.detach();
  const Json::Array rows = histograms.at("weights/w1").as_array();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].as_array()[0], Json(16));  // samples after the second step
  EXPECT_EQ(rows[1].as_array()[0], Json(32));
  EXPECT_FLOAT_EQ(rows[1].as_array()[1].as_number(), weight.min().item<double>());
  EXPECT_FLOAT_EQ(rows[1].as_array()[2].as_number(), weight.max().item<double>());
  EXPECT_EQ(rows[1].as_array()[3], Json(24.0));
  EXPECT_NEAR(rows[1].as_array()[4].as_number(), weight.to(at::kDouble).sum().item<double>(), 1e-9);
  EXPECT_NEAR(rows[1].as_array()[5].as_number(), weight.to(at::kDouble).pow(2).sum().item<double>(), 1e-9);
  EXPECT_EQ(counted(rows[1]), 24.0);

  // Plain SGD: the gradient is what the step took off, divided by the rate.
  const at::Tensor gradient = (before_step_4 - weight) / 0.125;
  const Json& shown = histograms.at("gradients/w1").as_array()[1];
  EXPECT_NEAR(shown.as_array()[1].as_number(), gradient.min().item<double>(), 1e-5);
  EXPECT_NEAR(shown.as_array()[2].as_number(), gradient.max().item<double>(), 1e-5);
  EXPECT_NEAR(shown.as_array()[4].as_number(), gradient.sum().item<double>(), 1e-4);
}

TEST_F(TensorboardHistogramsTest, CountsEveryValueInItsBucket) {
  SmallRun run(config("\"interval\": 1, \"gradients\": false"));
  run.step();

  const Json histograms = read();
  EXPECT_EQ(histograms.find("gradients/w1"), nullptr);
  const Json& row = histograms.at("weights/w1").as_array().front();
  const Json::Array& limits = row.as_array()[6].as_array();
  const Json::Array& counts = row.as_array()[7].as_array();
  const at::Tensor weight = run.model.parameters[0].tensor.detach().flatten();
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const double from = i == 0 ? -1e30 : limits[i - 1].as_number();
    double expected = 0;
    for (std::int64_t j = 0; j < weight.numel(); ++j) {
      const double value = weight[j].item<double>();
      expected += value >= from && (value < limits[i].as_number() || i + 1 == limits.size());
    }
    EXPECT_EQ(counts[i].as_number(), expected) << "bucket " << i;
  }
}

TEST_F(TensorboardHistogramsTest, AChannelOfEqualValuesIsOneBucket) {
  SmallRun run(config("\"interval\": 1"));
  run.model.parameters[3].tensor.mutable_data_ptr<float>();
  at::Tensor unused = run.model.parameters[3].tensor.detach();
  unused.fill_(0.5);
  run.step();

  EXPECT_EQ(read().at("weights/unused").as_array().front(), Json::parse("[8, 0.5, 0.5, 5.0, 2.5, 1.25, [0.5], [5.0]]"));
}

TEST(TensorboardHistogramsFolder, IsEachRunsOwnAndAResumedRunGoesOnInIt) {
  const TemporaryFolder folder;
  const std::string config = R"({"train_batch_size": 8, "steps_per_print": null,
      "optimizer": {"type": "SGD", "params": {"lr": 0.125}},
      "capstan": {"observers": [{"type": "tensorboard_histograms", "params": {"interval": 1, "job_name": "job",
        "output_path": ")" + folder.path().string() +
                             "\"}}]}}";
  const auto files = [&](const std::string& job) {
    const std::filesystem::path histograms = folder / job / "histograms";
    if (!std::filesystem::exists(histograms)) return std::ptrdiff_t{0};
    return std::distance(std::filesystem::directory_iterator(histograms), std::filesystem::directory_iterator());
  };
  SmallRun(config).step();
  EXPECT_EQ(files("job"), 1);

  SmallRun second(config);
  second.step();
  EXPECT_EQ(files("job"), 1);
  EXPECT_EQ(files("job-2"), 1);
  second.engine.save_checkpoint(folder / "ckpt");

  SmallRun(config).step();
  EXPECT_EQ(files("job-3"), 1);

  SmallRun resumed(config);
  resumed.engine.load_checkpoint(folder / "ckpt");
  resumed.step();
  EXPECT_EQ(files("job"), 1);
  EXPECT_EQ(files("job-2"), 2);
  EXPECT_EQ(files("job-3"), 1);
  EXPECT_EQ(files("job-4"), 0);
}

}  // namespace
}  // namespace capstan::test
