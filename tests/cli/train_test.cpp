// Training as a user starts it: real processes, small models.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <regex>
#include <set>

#include "capstan/sdk/indexed_file.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kConfig = R"({
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 5}},
  "steps_per_print": 5,
  "csv_monitor": {"enabled": true, "output_path": "metrics", "job_name": "run"},
  "capstan": {"model": {"type": "mlp", "params": {}}}
})";

class Train : public ::testing::Test {
 protected:
  Train() {
    write_bytes(folder_ / "config.json", kConfig);
    write_bytes(folder_ / "text.txt", some_text());
  }

  std::vector<std::string> command(const std::vector<std::string>& more, const std::string& steps = "10") const {
    std::vector<std::string> words = {"train", "--config", "config.json", "--data", "text.txt", "--steps", steps};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  ProcessResult train(const std::vector<std::string>& more = {}, const std::string& steps = "10",
                      const ProcessOptions& options = {}) const {
    return run_capstan(folder_, command(more, steps), options);
  }
  std::string exported(const std::string& checkpoint) const {
    const ProcessResult result = run_capstan(
        folder_, {"export", "--checkpoint", checkpoint, "--to", "safetensors", "--out", "exported.safetensors"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_bytes(folder_ / "exported.safetensors");
  }

  TemporaryFolder folder_;
};

TEST_F(Train, SaysWhatIsInForceAndHowItWent) {
  const ProcessResult result = train({"--save", "ckpt", "--seed", "7"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  configuration  config.json\n"));
  EXPECT_THAT(result.out, HasSubstr("  batch          8 = micro-batch 4 x accumulation 2 (derived) x 1 process\n"));
  EXPECT_THAT(result.out, HasSubstr("  steps          10 (command line), "));
  EXPECT_THAT(result.out, HasSubstr("  optimizer      AdamW: lr 0.01\n"));
  EXPECT_THAT(result.out, HasSubstr("  clipping       1 (gradient_clipping is not set; DeepSpeed's default)\n"));
  EXPECT_THAT(result.out, HasSubstr("  ZeRO           stage 0: nothing is partitioned\n"));
  EXPECT_THAT(result.out, HasSubstr("  seed           7 (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("  metrics        csv_monitor in metrics/run\n"));
  EXPECT_THAT(result.out, HasSubstr("capstan-mlp 0.1.0 (" CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/models/"));
  EXPECT_THAT(result.out, HasSubstr("\nsaved ckpt/global_step10\n"));
  EXPECT_THAT(result.out, HasSubstr("\ntrained 10 steps in "));
  EXPECT_EQ(read_bytes(folder_ / "ckpt/latest"), "global_step10");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "metrics/run/Train_Samples_train_loss.csv"));
}

TEST_F(Train, PrintsTheProgressLinesOfStepsPerPrint) {
  const std::string out = train().out;

  EXPECT_THAT(out, HasSubstr("\nstep=0, skipped=0, lr=["));
  EXPECT_TRUE(std::regex_search(out, std::regex("\nstep=5, skipped=0, lr=\\[[0-9.e-]+\\], mom=\\[\\[0.9, 0.999\\]\\]\n"
                                                "epoch=0/micro_step=10/global_step=5, RunningAvgSamplesPerSec=[0-9.]+, "
                                                "CurrSamplesPerSec=[0-9.]+, MemAllocated=[0-9.]+GB, "
                                                "MaxMemAllocated=[0-9.]+GB\n"
                                                "loss=[0-9.]+, samples/s=[0-9.]+, tokens/s=[0-9]+, eta=0:00:0[0-9]\n")))
      << out;
  EXPECT_THAT(train({"--set", "steps_per_print=null"}).out, Not(HasSubstr("step=")));
}

TEST_F(Train, PrintsTimersAndMemoryWhenAsked) {
  const std::string out = train({"--set", "wall_clock_breakdown=true", "--set", "memory_breakdown=true"}, "2").out;

  EXPECT_THAT(out, HasSubstr("[Rank 0] time (ms) | fwd_microstep: "));
  EXPECT_THAT(out, HasSubstr("[Rank 0] time (ms) | fwd: "));
  EXPECT_THAT(out, HasSubstr("after forward"));
  const std::string dump = train({"--set", "dump_state=true"}, "1").out;
  EXPECT_THAT(dump, HasSubstr("Engine:\n  device "));
  EXPECT_THAT(dump, HasSubstr("\nConfiguration:\n  activation_checkpointing.contiguous_memory_optimization "));
  EXPECT_THAT(dump,
              HasSubstr("  dump_state .................................................. true  (command line)\n"));
}

TEST_F(Train, GoesOnWhileAMonitorHangsAndLosesNothingThatItsQueueHolds) {
  // Who opens a pipe waits for its other end.
  const std::string pipe = folder_ / "metrics/run/Train_Samples_train_loss.csv";
  std::filesystem::create_directories(folder_ / "metrics/run");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::vector<std::string> words = command({}, "40");
  words.insert(words.begin(), kCapstan);
  Process run(words, {.folder = folder_.path()});
  ASSERT_TRUE(run.wait_for_output("step=40, "));

  std::ifstream other_end(pipe);
  std::string line;
  int lines = 0;
  while (std::getline(other_end, line)) ++lines;
  EXPECT_EQ(lines, 1 + 40);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("dropped")));
}

TEST_F(Train, WritesNoEscapesWhereThereIsNoTerminal) {
  const ProcessResult result = train();

  EXPECT_THAT(result.out + result.err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("\r")));
}

TEST_F(Train, DrawsAProgressBarOnATerminal) {
  const ProcessOptions terminal{.environment = {"TERM=xterm", "NO_COLOR="}, .terminal = true};
  const std::string out = train({}, "10", terminal).out;

  EXPECT_THAT(out, HasSubstr("\x1b[1mCapstan"));
  EXPECT_THAT(out, HasSubstr("\r\x1b[Kstep "));
  EXPECT_THAT(out, HasSubstr("tokens/s"));
  EXPECT_THAT(train({"--no-progress"}, "10", terminal).out, Not(HasSubstr("\r\x1b[K")));
}

TEST_F(Train, UsesNoColoursWhereNoColorIsSet) {
  const std::string out = train({}, "10", {.environment = {"TERM=xterm", "NO_COLOR=1"}, .terminal = true}).out;

  EXPECT_THAT(out, Not(HasSubstr("\x1b[1m")));
  EXPECT_THAT(out, HasSubstr("\r\x1b[Kstep "));
}

TEST_F(Train, ResumesToTheSameBytes) {
  ASSERT_EQ(train({"--save", "whole"}, "12").exit_code, 0);
  const std::string whole_rows = read_bytes(folder_ / "metrics/run/Train_Samples_train_loss.csv");
  std::filesystem::remove_all(folder_ / "metrics");
  ASSERT_EQ(train({"--save", "parts"}, "5").exit_code, 0);
  const ProcessResult second = train({"--save", "parts", "--resume", "parts"}, "12");

  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("\nresumed from parts/global_step5 at step 5\n"));
  EXPECT_THAT(second.out, HasSubstr("\ntrained 7 steps in "));
  EXPECT_EQ(exported("parts"), exported("whole"));
  EXPECT_EQ(read_bytes(folder_ / "metrics/run/Train_Samples_train_loss.csv"), whole_rows);
}

TEST_F(Train, SavesEverySoManyStepsAndKeepsTheNewest) {
  const ProcessResult result = train({"--save", "ckpt", "--save-every", "3", "--keep", "2"}, "10");

  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "ckpt")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"global_step9", "global_step10", "latest"}));
}

TEST_F(Train, WarnsWhenAResumedRunHasOtherDataOrAnotherSeed) {
  ASSERT_EQ(train({"--save", "ckpt"}, "3").exit_code, 0);
  EXPECT_THAT(
      train({"--resume", "ckpt", "--seed", "9"}, "4").err,
      HasSubstr("warning: ckpt/global_step3: was trained with another order of the data (seed 1234, now 9). The "
                "run does not continue as it would have.\n"));
  write_bytes(folder_ / "text.txt", some_text() + "more");
  EXPECT_THAT(train({"--resume", "ckpt"}, "4").err,
              HasSubstr("warning: ckpt/global_step3: was trained on other data ("));
  EXPECT_THAT(train({"--resume", "ckpt:global_step3"}, "3").err, HasSubstr("so there is nothing to train."));
}

TEST_F(Train, StartsFromTheWeightsOfASafetensorsFile) {
  ASSERT_EQ(train({"--save", "ckpt"}, "4").exit_code, 0);
  exported("ckpt");
  const std::vector<std::string> weights = {"--init-from", "exported.safetensors"};
  std::vector<std::string> words = {"eval", "--config", "config.json", "--data", "text.txt"};
  const auto eval = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_capstan(folder_, all);
  };
  const std::regex loss("eval_loss=([0-9.]+) over ([0-9,]+) samples of ([0-9]+) tokens");
  std::smatch of_weights, of_checkpoint;
  const std::string first = eval(weights).out, second = eval({"--checkpoint", "ckpt"}).out;

  ASSERT_TRUE(std::regex_search(first, of_weights, loss)) << first;
  ASSERT_TRUE(std::regex_search(second, of_checkpoint, loss)) << second;
  EXPECT_EQ(of_weights[1], of_checkpoint[1]);
  EXPECT_EQ(train(weights, "2").exit_code, 0);
}

TEST_F(Train, EvaluatesACheckpointOfAnotherOptimizerScheduleAndGroupsInSilence) {
  ASSERT_EQ(
      train({"--save", "ckpt/", "--set", "optimizer={\"type\": \"Adam\", \"params\": {\"lr\": 0.01}}"}, "1").exit_code,
      0);
  // The default configuration has AdamW, another schedule and two groups.
  const ProcessResult same =
      run_capstan(folder_, {"eval", "--config", "config.json", "--checkpoint", "ckpt/", "--data", "text.txt"});
  const ProcessResult other =
      run_capstan(folder_, {"eval", "--checkpoint", "ckpt/", "--data", "text.txt", "--model", "mlp"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  // Micro-batches of another size: sums of floats differ in their last digits.
  const std::size_t digits = std::string("step=1, eval_loss=1.2345").size();
  EXPECT_EQ(other.out.substr(0, digits), same.out.substr(0, digits));
  EXPECT_THAT(other.err, Not(HasSubstr("was saved with")));
  const ProcessResult none = run_capstan(folder_, {"eval", "--checkpoint", "ckpt/:nothing", "--data", "text.txt"});
  EXPECT_THAT(none.err, HasSubstr("ckpt"));
  EXPECT_THAT(none.err, Not(HasSubstr("//")));
}

TEST_F(Train, CountsOneProcessAndOneGroupOfACheckpointInTheSingular) {
  ASSERT_EQ(train({"--save", "ckpt"}, "1").exit_code, 0);
  std::vector<std::string> words =
      command({"--resume", "ckpt", "--set",
               "capstan.parameter_groups=[{\"dims_below\": 2, \"params\": {\"weight_decay\": 0}}]"},
              "2");
  words.insert(words.begin(), {"launch", "-n", "2"});
  const ProcessResult result = run_capstan(folder_, words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("was saved by 1 process and goes on with 2."));
  EXPECT_THAT(result.err,
              HasSubstr("was saved with 1 parameter group, and this run has 2, which start from the numbers "
                        "of the configuration."));
}

TEST_F(Train, ExportSaysWhenItReplacesAFile) {
  ASSERT_EQ(train({"--save", "ckpt"}, "1").exit_code, 0);
  const auto out_of = [&](const std::string& format, const std::string& out) {
    return run_capstan(folder_, {"export", "--checkpoint", "ckpt/", "--to", format, "--out", out}).out;
  };
  for (const char* format : {"safetensors", "pt"}) {
    const std::string out = std::string("to_") + format;
    EXPECT_EQ(out_of(format, out), "wrote " + out + " from ckpt, global_step1\n");
    EXPECT_EQ(out_of(format, out), "wrote " + out + " from ckpt, global_step1, in place of what was there\n");
  }
}

TEST_F(Train, EvaluatesOnItsWayAndAtTheEnd) {
  write_bytes(folder_ / "held_out.txt", some_text());
  const ProcessResult result = train({"--eval-data", "held_out.txt", "--eval-every", "4"}, "10");

  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* step : {"4", "8", "10"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string("\nstep=") + step + ", eval_loss=")) << result.out;
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "metrics/run/Train_Samples_eval_loss.csv"));
}

TEST_F(Train, ReadsIndexedFilesAsItReadsTheSameTokensAsBytes) {
  const std::string text = some_text();
  sdk::IndexedWriter writer((folder_ / "corpus").string(), sdk::IndexedType::kU16);
  writer.append(std::vector<std::int64_t>(text.begin(), text.end()));
  writer.end_row();
  writer.end_document();
  writer.finish();
  write_bytes(folder_ / "held_out.txt", text);
  const auto losses = [&](const std::vector<std::string>& data) {
    std::vector<std::string> words = {"train", "--config", "config.json", "--steps", "10"};
    words.insert(words.end(), data.begin(), data.end());
    const ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::smatch found;
    EXPECT_TRUE(std::regex_search(result.out, found, std::regex("eval_loss=[0-9.]+"))) << result.out;
    const std::string trained = read_bytes(folder_ / "metrics/run/Train_Samples_train_loss.csv");
    std::filesystem::remove_all(folder_ / "metrics");
    return trained + found.str();
  };
  const std::string as_bytes = losses({"--data", "text.txt", "--eval-data", "held_out.txt"});
  EXPECT_EQ(losses({"--data", "corpus.idx", "--eval-data", "corpus.idx"}), as_bytes);
  EXPECT_EQ(losses({"--data", "corpus", "--eval-data", "corpus", "--set", "capstan.data.format=indexed"}), as_bytes);
}

TEST_F(Train, EvaluatesEverySampleWhateverTheMicroBatch) {
  ASSERT_EQ(train({"--save", "ckpt"}, "1").exit_code, 0);
  write_bytes(folder_ / "held_out.txt", some_text().substr(0, 20 * 16 + 1));  // 20 samples of 16 tokens
  std::set<std::string> losses;
  for (const char* rows : {"1", "8", "20", "64"}) {
    const std::string out = run_capstan(folder_, {"eval", "--config", "config.json", "--data", "held_out.txt", "--seq",
                                                  "16", "--checkpoint", "ckpt", "--set", "train_batch_size=null",
                                                  "--set", std::string("train_micro_batch_size_per_gpu=") + rows})
                                .out;
    std::smatch found;
    ASSERT_TRUE(std::regex_search(out, found, std::regex("eval_loss=([0-9.]+) over 20 samples of 16 tokens"))) << out;
    losses.insert(std::to_string(std::stod(found[1])).substr(0, 6));  // sums of floats differ in their last digits
  }
  EXPECT_THAT(losses, testing::SizeIs(1)) << testing::PrintToString(losses);
}

TEST_F(Train, EvaluatesPerplexityAndWhereTokensAreBytesBitsAByte) {
  ASSERT_EQ(train({"--save", "ckpt"}, "3").exit_code, 0);
  std::string tokens;  // uint16, little-endian
  for (const char byte : some_text()) tokens += {byte, '\0'};
  write_bytes(folder_ / "tokens.bin", tokens);
  const auto eval = [&](const char* data) {
    return run_capstan(folder_, {"eval", "--config", "config.json", "--data", data, "--checkpoint", "ckpt"}).out;
  };
  const std::string of_text = eval("text.txt"), of_tokens = eval("tokens.bin");
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(of_text, found,
                        std::regex("eval_loss=([0-9.]+) over [0-9,]+ samples of [0-9]+ tokens, perplexity=([0-9.]+), "
                                   "bits_per_byte=([0-9.]+)\n")))
      << of_text;
  const double loss = std::stod(found[1]);
  EXPECT_NEAR(std::stod(found[2]), std::exp(loss), 1e-3);
  EXPECT_NEAR(std::stod(found[3]), std::log2(std::exp(1.0)) * loss, 1e-4);
  // Token ids do not tell how many bytes they stand for.
  EXPECT_EQ(of_tokens, of_text.substr(0, of_text.find(", bits_per_byte")) + "\n");
}

/// An evaluation has no optimizer: neither the groups of one nor its type matter.
TEST_F(Train, EvaluatesWithoutAWordOnTheOptimizer) {
  ASSERT_EQ(train({"--save", "ckpt"}, "1").exit_code, 0);
  const ProcessResult result =
      run_capstan(folder_, {"eval", "--config", "config.json", "--data", "text.txt", "--checkpoint", "ckpt/", "--set",
                            R"(capstan.parameter_groups=[{"match": "bias", "params": {"weight_decay": 0}}])", "--set",
                            "optimizer.type=SGD", "--set", "scheduler=null"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("parameter group")));
  EXPECT_THAT(result.out, HasSubstr("eval_loss="));
}

/// Of a run that goes on the groups' numbers matter.
TEST_F(Train, ResumesWithAWordOnOtherParameterGroups) {
  ASSERT_EQ(train({"--save", "ckpt"}, "1").exit_code, 0);
  const ProcessResult result = train(
      {"--resume", "ckpt/", "--set", R"(capstan.parameter_groups=[{"match": "bias", "params": {"weight_decay": 0}}])"},
      "2");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("warning: ckpt/global_step1: was saved with 1 parameter group, and this run has 2, "
                                    "which start from the numbers of the configuration.\n"));
}

TEST_F(Train, StopsAtALossThatIsNoNumber) {
  const ProcessResult result =
      train({"--set", "optimizer.params.lr=1e38", "--set", "scheduler=null", "--set", "gradient_clipping=0"});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("capstan: error: the loss is not finite at step "));
  EXPECT_THAT(result.err, HasSubstr("the first gradient that is not is that of '"));
}

/// The plugins whose files a process has mapped.
std::set<std::string> mapped_plugins(pid_t pid) {
  std::set<std::string> names;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto at = line.find("/lib/capstan/plugins/");
    if (at != std::string::npos) names.insert(std::filesystem::path(line.substr(at)).stem());
  }
  return names;
}

TEST_F(Train, FinishesTheStepSavesAndEndsWith130WhenInterrupted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove_all(folder_ / "ckpt");
    std::vector<std::string> words = command({"--save", "ckpt"}, "100000000");
    words.insert(words.begin(), kCapstan);
    Process process(words, {.folder = folder_.path()});
    ASSERT_TRUE(process.wait_for_output("step=5,"));
    EXPECT_EQ(mapped_plugins(process.pid()),
              (std::set<std::string>{"libcapstan_dataset_tokens", "libcapstan_model_mlp", "libcapstan_optimizer_adam",
                                     "libcapstan_scheduler_warmup_lr", "libcapstan_monitor_csv"}));
    process.send(signal);
    const ProcessResult result = process.wait();

    EXPECT_EQ(result.exit_code, 130);
    EXPECT_THAT(result.err, HasSubstr("capstan: finishing this step; a second signal ends at once\n"));
    EXPECT_THAT(result.err, HasSubstr("capstan: interrupted after step "));
    EXPECT_THAT(result.err, HasSubstr(" of 100,000,000. Continue with --resume ckpt\n"));
    const std::string tag = read_bytes(folder_ / "ckpt/latest");
    EXPECT_THAT(result.out, HasSubstr("saved ckpt/" + tag + "\n"));
    EXPECT_EQ(exported("ckpt").empty(), false);
  }
}

TEST_F(Train, EndsAtOnceAtASecondInterrupt) {
  // A step that takes many seconds, so that the second signal comes before its end.
  std::vector<std::string> words = command({"--set", "capstan.model=gpt:small", "--set", "train_batch_size=512",
                                            "--set", "train_micro_batch_size_per_gpu=512"});
  words.insert(words.begin(), kCapstan);
  // The last line before the first step is printed a moment before it begins: a signal may come in between.
  for (int attempt = 0; attempt < 20; ++attempt) {
    Process process(words, {.folder = folder_.path()});
    ASSERT_TRUE(process.wait_for_output("step=0,"));
    process.send(SIGINT);
    if (process.wait_for_output("a second signal ends at once")) {
      process.send(SIGINT);
      EXPECT_EQ(process.wait().signal, SIGINT);
      return;
    }
    ASSERT_THAT(process.wait().err, HasSubstr("capstan: interrupted before the first step\n"));
  }
  FAIL() << "twenty first steps never began";
}

struct Mistake {
  std::vector<std::string> words;
  int exit_code;
  const char* message;
};

class TrainMistake : public Train, public ::testing::WithParamInterface<Mistake> {};

TEST_P(TrainMistake, IsOneMessageAndTheCodeOfItsKind) {
  write_bytes(folder_ / "empty.txt", "");
  write_bytes(folder_ / "short.txt", "too short");
  const ProcessResult result = train(GetParam().words);

  EXPECT_EQ(result.exit_code, GetParam().exit_code);
  EXPECT_THAT(result.err, HasSubstr(GetParam().message));
  EXPECT_THAT(result.err, HasSubstr("capstan: error: "));
  EXPECT_THAT(result.err, Not(HasSubstr("bug in Capstan")));
  EXPECT_THAT(result.out, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, TrainMistake,
    ::testing::Values(
        Mistake{{"--config", "missing.json"},
                3,
                "'missing.json' is neither an existing file nor base64 of a configuration."},
        Mistake{{"--set", "optimizer.type=AdamX"}, 3, "no plugin provides an optimizer 'AdamX'. Did you mean"},
        Mistake{{"--set", "gradient_cliping=1"}, 3, "Did you mean 'gradient_clipping'?"},
        Mistake{{"--model", "gpt:gigantic"}, 3, "capstan.model.params.size"},
        Mistake{{"--set", "capstan.data.path=nowhere.txt"}, 1, "nowhere.txt"},
        Mistake{{"--set", "capstan.data.path=empty.txt"}, 1, "empty.txt"},
        Mistake{{"--set", "capstan.data.path=short.txt"}, 1, "short.txt"},
        Mistake{
            {"--save-every", "5"}, 3, "capstan.run.save_every: has no effect without capstan.run.save_dir (--save)."},
        Mistake{{"--keep", "5"}, 3, "capstan.run.keep: has no effect without capstan.run.save_dir (--save)."},
        Mistake{{"--eval-every", "5"},
                3,
                "capstan.run.eval_every: has no effect without capstan.data.eval_path (--eval-data)."},
        Mistake{{"--steps", "0"}, 3, "capstan.run.steps"},
        Mistake{{"--set", "capstan.model=null"}, 3, "capstan.model: not given. Name a model with --model"}));

TEST_F(Train, NamesWhatItNeedsWhenNothingIsGiven) {
  const ProcessResult no_data = run_capstan(folder_, {"train", "--config", "config.json", "--steps", "5"});
  const ProcessResult no_steps =
      run_capstan(folder_, {"train", "--config", "config.json", "--data", "nowhere", "--set", "fp16.enabld=true"});

  EXPECT_EQ(no_data.exit_code, 3);
  EXPECT_THAT(no_data.err, HasSubstr("capstan.data.path: not given. Name text files or folders"));
  EXPECT_EQ(no_steps.exit_code, 3);
  // With all that the configuration lacks, before anything else is looked at.
  EXPECT_THAT(no_steps.err, HasSubstr("capstan.run.steps: not given. Say how long to train with --steps"));
  EXPECT_THAT(no_steps.err, HasSubstr("fp16.enabld: unknown key"));
}

TEST_F(Train, NamesAllThatIsMissingAtOnce) {
  write_bytes(folder_ / "zero.json", R"({"zero_optimization": {"stage": 1}})");
  const ProcessResult result = run_capstan(folder_, {"train", "--config", "zero.json", "--data", "text.txt"});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              HasSubstr("training needs a batch size, an optimizer, a model and a number of steps. Add "
                        "\"train_micro_batch_size_per_gpu\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                        "{\"lr\": 0.001}}, \"capstan\": {\"model\": \"gpt:tiny\", \"run\": {\"steps\": 200}} to the "
                        "file, or --set train_micro_batch_size_per_gpu=8 --set optimizer.type=AdamW --model gpt:tiny "
                        "--steps 200 to the command line."));
}

TEST_F(Train, RefusesToRunApartInSeveralProcesses) {
  const ProcessResult result = train({}, "5", {.environment = {"WORLD_SIZE=2"}});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("WORLD_SIZE is 2, but RANK is not set, so this process does not know which of them "
                                    "it is."));
}

TEST_F(Train, ResumingNamesWhatDoesNotFit) {
  ASSERT_EQ(train({"--save", "ckpt"}, "2").exit_code, 0);
  const ProcessResult other = train({"--resume", "ckpt", "--set", "capstan.model.params.hidden=32"});
  const ProcessResult none = train({"--resume", "nowhere"});

  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("It was saved from another model."));
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("nowhere"));
}

TEST_F(Train, UsesTheDefaultConfigurationWhenNoneIsNamed) {
  const ProcessResult result = run_capstan(folder_, {"train", "--data", "text.txt", "--steps", "2"});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  configuration  the default configuration (" CAPSTAN_TEST_BUILD_DIR
                                    "/share/capstan/default.json)\n"));
  EXPECT_THAT(result.out, HasSubstr("  model          gpt "));
}

}  // namespace
}  // namespace capstan::cli
