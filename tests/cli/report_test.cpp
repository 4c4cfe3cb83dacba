#include "cli/report/report.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Report : public ::testing::Test {
 protected:
  Report() { std::filesystem::create_directories(folder_ / "run"); }
  void put(const std::string& name, const std::string& rows) const { write_bytes(folder_.path() / "run" / name, rows); }
  ProcessResult report(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"report", "run"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }
  std::string page() const { return read_bytes(folder_ / "run/report.html"); }

  TemporaryFolder folder_;
};

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Report, PlotsTheMetricsOfARunOnAPageThatNeedsNothingElse) {
  put("Train_Samples_train_loss.csv", "step,train_loss\r\n8,3.5\r\n16,2.5\r\n24,2.0\r\n");
  put("Train_Samples_eval_loss.csv", "step,eval_loss\r\n24,2.25\r\n");
  put("Train_Samples_lr.csv", "step,lr\r\n8,0.001\r\n16,0.002\r\n24,0.002\r\n");
  put("Train_Samples_elapsed_time_ms_forward.csv", "step,f\r\n8,3\r\n16,4\r\n");
  put("Train_Samples_elapsed_time_ms_backward.csv", "step,b\r\n8,6\r\n16,7\r\n");
  put("Train_Samples_elapsed_time_ms_step.csv", "step,s\r\n8,1\r\n16,1\r\n");
  put("Train_Samples_samples_per_second.csv", "step,t\r\n8,100\r\n16,120\r\n");
  put("Train_Samples_memory_mb.csv", "step,m\r\n8,512\r\n16,513\r\n");
  put("my_metric.csv", "step,metric\r\n8,1\r\n");
  const ProcessResult result = report();

  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "wrote run/report.html\n");
  const std::string html = page();
  for (const char* title :
       {"Loss", "Learning rate", "Throughput, samples a second", "Memory, MB", "Time of a step, ms", "my_metric"}) {
    EXPECT_THAT(html, HasSubstr(std::string("<section><h2>") + title + "</h2><svg "));
  }
  EXPECT_EQ(count(html, "<svg "), 6);
  EXPECT_EQ(count(html, "class=\"area "), 3);  // forward, backward and step, one upon the other
  EXPECT_THAT(html,
              HasSubstr("<td>Train_Samples_train_loss</td><td>3</td><td>3.5</td><td>2</td><td>2</td><td>3.5</td>"));
  // Nothing is fetched, nothing runs.
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http")), Not(HasSubstr("src=")), Not(HasSubstr("<script")),
                          Not(HasSubstr("@import")), Not(HasSubstr("url("))));
}

TEST_F(Report, TakesARunOfTheProgramItself) {
  write_bytes(folder_ / "text.txt", some_text());
  write_bytes(folder_ / "config.json",
              R"({"train_batch_size": 4, "wall_clock_breakdown": true, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "steps_per_print": null,
    "csv_monitor": {"enabled": true, "job_name": "run"}, "capstan": {"model": {"type": "mlp", "params": {}}}})");
  ASSERT_EQ(run_capstan(folder_, {"train", "--config", "config.json", "--data", "text.txt", "--steps", "5"}).exit_code,
            0);
  ASSERT_EQ(report({"--out", "page.html"}).exit_code, 0);
  const std::string html = read_bytes(folder_ / "page.html");

  for (const char* title :
       {"Loss", "Learning rate", "Throughput, samples a second", "Memory, MB", "Time of a step, ms", "Gradient norm"}) {
    EXPECT_THAT(html, HasSubstr(std::string("<h2>") + title + "</h2>"));
  }
}

TEST_F(Report, PlotsTheCommunicationOfBackwardAndOfTheWholeStepTogether) {
  put("Train_Samples_elapsed_time_ms_backward_allreduce.csv", "step,x\r\n1,3\r\n2,4\r\n");
  put("Train_Samples_comms_ms.csv", "step,x\r\n1,5\r\n2,6\r\n");
  put("Train_Samples_comms_mb_sent.csv", "step,x\r\n1,0.5\r\n2,0.5\r\n");
  ASSERT_EQ(report().exit_code, 0);
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("<h2>Communication, ms</h2>"));
  EXPECT_THAT(html, HasSubstr("</i>in backward"));
  EXPECT_THAT(html, HasSubstr("</i>of the whole step"));
  EXPECT_THAT(html, HasSubstr("<h2>Communication, MB sent</h2>"));
}

TEST_F(Report, PlotsWhatOffloadReadsWritesAndWaitsFor) {
  put("Train_Samples_offload_mb_read.csv", "step,x\r\n1,12\r\n2,12\r\n");
  put("Train_Samples_offload_mb_written.csv", "step,x\r\n1,8\r\n2,8\r\n");
  put("Train_Samples_offload_wait_ms.csv", "step,x\r\n1,0.5\r\n2,0.25\r\n");
  ASSERT_EQ(report().exit_code, 0);
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("<h2>Offload, MB</h2>"));
  EXPECT_THAT(html, HasSubstr("</i>read"));
  EXPECT_THAT(html, HasSubstr("</i>written"));
  EXPECT_THAT(html, HasSubstr("<h2>Offload, ms waited</h2>"));
}

TEST_F(Report, MarksWhatIsNoNumberAndLeavesAGap) {
  put("loss.csv", "step,loss\r\n1,1\r\n2,2\r\n3,nan\r\n4,inf\r\n5,2\r\n6,1\r\n7,cut off");
  ASSERT_EQ(report().exit_code, 0);

  const std::string html = page();
  EXPECT_EQ(count(html, "<title>no finite number</title>"), 2);
  const std::string path = html.substr(html.find("<path class=\"line"));
  EXPECT_EQ(count(path.substr(0, path.find("/>")), "M"), 2);
  EXPECT_THAT(html, HasSubstr("<td>loss</td><td>6</td>"));
}

TEST_F(Report, WritesNamesAsText) {
  put("a<b>&\".csv", "step,x\r\n1,1\r\n");
  ASSERT_EQ(report().exit_code, 0);

  EXPECT_THAT(page(), AllOf(HasSubstr("<h2>a&lt;b&gt;&amp;&quot;</h2>"), Not(HasSubstr("<b>"))));
}

TEST_F(Report, SaysWhatAFolderWithoutMetricsLacks) {
  write_bytes(folder_ / "run/notes.csv", "when,what\n");
  const ProcessResult result = report();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err,
            "capstan: error: run: holds no metrics. Give the folder of a run's csv_monitor, <output_path>/<job_name>; "
            "\"csv_monitor\": {\"enabled\": true} in a configuration writes them.\n");

  const ProcessResult nowhere = run_capstan(folder_, {"report", "nowhere"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_EQ(
      nowhere.err,
      "capstan: error: nowhere: is not a folder. Give the folder of a run's csv_monitor: <output_path>/<job_name>.\n");
}

TEST(PlotSvg, KeepsTheExtremesOfAMillionPoints) {
  Series series;
  for (int i = 0; i < 1'000'000; ++i) series.emplace_back(i, std::sin(i * 1e-3));
  series[123'456].second = 40;
  const std::string svg = plot_svg({{"line", &series}}, false);

  EXPECT_LT(svg.size(), 60'000u);
  EXPECT_THAT(svg, HasSubstr(",10.0"));  // the top of the frame: 40 is the greatest
}

TEST(PlotSvg, DrawsWhereThereIsOneValueOrNone) {
  const Series flat{{0, 0.0}, {8, 0.0}}, nothing{{1, NAN}};
  for (const Series* series : {&flat, &nothing}) {
    const std::string svg = plot_svg({{"line", series}}, false);
    EXPECT_THAT(svg, HasSubstr("<path class=\"line c0\""));
    EXPECT_FALSE(std::regex_search(svg, std::regex("[\"ML,]-?(nan|inf)"))) << svg;
  }
}

}  // namespace
}  // namespace capstan::cli
