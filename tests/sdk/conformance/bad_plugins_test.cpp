#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "core/errors.hpp"
#include "sdk/conformance/conformance.hpp"

namespace capstan::conformance {
namespace {

std::filesystem::path plugin(const std::string& name) {
  return std::filesystem::path(CAPSTAN_TEST_BUILD_DIR) / "tests/bad_plugins" / ("libcapstan_bad_" + name + ".so");
}

/// A plugin, the rule that it is told to break, and the case that must find it.
struct Control {
  std::string plugin, rule, found_by, text;
};

std::ostream& operator<<(std::ostream& out, const Control& control) {
  return out << control.plugin << " " << control.rule;
}

/// Back ends that move ranges.
std::vector<Control> offload_controls() {
  const std::string ranges = "offload_ranges", cases = "offload/Bad/";
  return {
      {ranges, "calls_leak", cases + "calls_leak", " bytes of each call of start and poll."},
      {ranges, "ranges", cases + "ranges", "ranges come back changed: "},
      {ranges, "lost_write", cases + "ranges", "ranges come back changed: "},
      {ranges, "overlaps", cases + "overlaps",
       "a read does not give what the last write that was started before it wrote."},
      {ranges, "many_ranges", cases + "many_ranges", "of 800 ranges of one ticket some come back changed."},
      {ranges, "tickets", cases + "tickets", "poll ends a ticket, and its bytes are not there."},
      {ranges, "poll", cases + "poll", " of 12 transfers it slept until the transfer was done."},
      {ranges, "threads", cases + "threads", "a ticket that another thread began, which has ended, fails: this thread"},
      {ranges, "done", cases + "done", "a read changes its memory again when it is done."},
      {ranges, "late_write", cases + "done", "a write reads its memory again when it is done."},
      {ranges, "lend", cases + "lend", "bytes come back changed through "},
      {ranges, "stale_pages", cases + "lend", "bytes come back changed through memory that was taken back."},
      {ranges, "in_flight_bytes", cases + "facts", "says that 0 bytes in flight keep it busy."},
      {ranges, "alignment", cases + "facts", "says that its alignment is 513: it must be a power of two up to 2 MiB."},
      {ranges, "facts", cases + "facts",
       "cannot write 512 bytes at 0, multiples of the alignment that it gives, 512: swap: Invalid argument."},
      {ranges, "facts_free", cases + "facts", " bytes are free, and takes a buffer of 2^60: register_buffer reserves"},
      {ranges, "release", cases + "release",
       "a buffer changes when another one is released, and a third one is written."},
      {ranges, "destroy", cases + "destroy", ""},
      {ranges, "leftovers", cases + "destroy", "leaves the file 'swap' behind."},
      {ranges, "stats", cases + "stats", "\"about\" in its stats must be a text of one line: {\"about\": 1}"},
      {ranges, "short_read", cases + "short_read", "a read that comes short, at the end of its file, is not an error."},
      {ranges, "full_disk", cases + "full_disk", "a write to a full disk is not an error."},
      {ranges, "io_error", cases + "io_error", "a read that fails with EIO is reported as done."},
      {ranges, "failed_ticket", cases + "failed_ticket",
       "fault names a range that is none of the ticket's: buffer 1, 100000 bytes at 0."},
      {ranges, "refused_start", cases + "refused_start",
       "start refuses a range of a buffer that was not registered, and moves another one all the same."},
  };
}

std::vector<Control> compression_controls() {
  const std::string bad = "compression", cases = "compression/Bad/";
  return {
      {bad, "plan", cases + "plan",
       "two instances make two plans for one model: ranks and resumed runs would not agree."},
      {bad, "plan_json", cases + "plan", "its plan is not JSON: "},
      {bad, "", "compression/BadBare/plan", "its plan has parameters, and it has no function transform."},
      {bad, "plan_frozen", cases + "plan",
       "'Bad', plan: parameter 'frozen.weight' is not trained, or has no elements. Ask the plugin's author."},
      {bad, "plan_groups", cases + "plan",
       "parameter 'embed.weight' has 98304 elements, which are not 7 groups of one size."},
      {bad, "plan_bits", cases + "plan", "'bits' must be 1 to 8, got 9."},
      {bad, "plan_operand", cases + "plan", "operand 'nowhere' is no module of the model."},
      {bad, "active", cases + "active", " updates, it gives two answers."},
      {bad, "pieces", cases + "pieces", "transform of 'embed.weight' makes something else of elements "},
      {bad, "statistics", cases + "statistics",
       "transform of 'embed.weight' is another one where measure was called by an instance of its own"},
      {bad, "in_place", cases + "in_place",
       "transform of 'embed.weight' gives something else where `values` is the input itself."},
      {bad, "writes", cases + "writes", "transform of 'embed.weight' leaves some of `values` as they were."},
      {bad, "writes_input", cases + "writes", "transform changes its input."},
      {bad, "writes_measure", cases + "writes", "measure changes its input."},
      {bad, "writes_beyond", cases + "writes", "transform writes outside of the memory that it was given."},
      {bad, "writes_no_measure", cases + "writes",
       "measure of 'embed.weight' leaves some numbers as they were, or makes NaN of finite values."},
      {bad, "measure_beyond", cases + "writes", "measure writes outside of the memory that it was given."},
      {bad, "finite", cases + "finite", "transform of 'embed.weight' makes infinities or NaN of zeros."},
      {bad, "codes", cases + "codes", " is not what transform makes of it, "},
      {bad, "codes_range", cases + "codes",
       "encode of 'embed.weight', element 0 of random values: the code is 8, and codes of 4 bits lie from -8 to 7."},
      {bad, "codes_zero", cases + "codes", "the zero point is 1, and its plan has no zero_points."},
      {bad, "states", cases + "states", "prepare makes other states of the same initial values a second time"},
      {bad, "gradient", cases + "gradient", "gradient of 'embed.weight' of twice the gradient is not twice as much"},
      {bad, "gradient_left_out", cases + "gradient", "leaves that of a trained state out."},
      {bad, "calls_leak", cases + "calls_leak", " bytes of each call of measure, transform and encode."},
      {bad, "operands", cases + "operands",
       "operand of 'blocks.0.fc', Float: makes infinities or NaN of finite values, or leaves some of `out` as they "
       "were."},
      {bad, "operands_input", cases + "operands", "operand changes its input."},
      {bad, "operands_beyond", cases + "operands", "operand writes outside of the memory that it was given."},
      {bad, "evaluation", cases + "evaluation", "evaluation changes what it saves."},
      {bad, "evaluation_values", cases + "evaluation",
       "operand gives something else of an input once other ones were evaluated."},
      {bad, "settle", cases + "settle", "nothing was seen."},
      {bad, "state_round_trip", cases + "state_round_trip", "saved, loaded and saved again, it writes another text."},
      {bad, "state_rounded", cases + "state_round_trip",
       "saved and loaded, it makes something else of the same inputs."},
      {bad, "state_json", cases + "state_round_trip", "save writes what is not JSON: "},
      {bad, "state_text", cases + "state_round_trip", "saved twice, it writes two texts."},
      {bad, "state_forgets", cases + "state_round_trip", "saved and loaded, it goes another way in the step after."},
      {bad, "state_step", cases + "state_round_trip",
       "saved in the midst of a step, and loaded after a micro-batch more, it ends that step another way."},
      {bad, "settle_first", cases + "settle",
       "operand makes infinities or NaN of finite values in evaluation, before the first training step."},
      {bad, "ranks_agree", cases + "ranks_agree", "the ranks make something else of the same input."},
      {bad, "operand_leak", cases + "operand_leak", " bytes of each call of operand and settle."},
  };
}

std::vector<Control> controls() {
  std::vector<Control> all = {
      {"exports", "", "loading/exports", "exports capstan_plugin_v1, second_symbol, not"},
      {"symbols", "", "loading/stable_symbols", "needs 'at::show_config"},
      {"run_path", "", "loading/run_path", "has the RUNPATH '/nowhere"},
      {"loading", "prints", "loading/quiet", "writes to the standard output or error when it is loaded: hello"},
      {"loading", "thread", "loading/quiet", "starts a thread when it is loaded."},
      {"loading", "file", "loading/quiet", "opens a file when it is loaded."},
      {"loading", "speed", "loading/speed", "scanning and loading took "},
      {"loading", "copy", "loading/copy", "crashed: signal 6 (Aborted)."},
      {"loading", "folder", "loading/quiet", "changes the working directory to '/' when it is loaded."},
      {"loading", "environment", "loading/quiet",
       "changes the environment variable 'CAPSTAN_BAD_LEFT' when it is loaded."},
      {"scheduler", "create_footprint", "scheduler/Bad/create_footprint",
       "changes the environment variable 'CAPSTAN_BAD_LEFT' when it is created."},
      {"scheduler", "create_in_folder", "scheduler/Bad/create_footprint",
       "changes the working directory to '/' when it is created."},
      {"scheduler", "create_file", "scheduler/Bad/create_footprint",
       "leaves a file open each time it is created and destroyed."},
      {"scheduler", "create_detached", "scheduler/Bad/create_footprint",
       "starts a thread each time it is created, which is still there when it has been destroyed."},
      {"observer", "layer_leak", "observer/Bad/calls_leak", " bytes of each call of layer."},
      {"observer", "batch_leak", "observer/Bad/calls_leak", " bytes of each call of batch."},
      {"optimizer", "hang", "optimizer/Bad/create_defaults", "did not end within 2 s (--timeout)."},
      {"optimizer", "state_bounds", "optimizer/Bad/finite",
       "parameter 'w': has no state 1: the manifest of Bad declares 1 for a slot, numbered from 0."},
      {"scheduler", "betas", "scheduler/Bad/finite",
       "the betas of update 10000 are 0.900000 and 1.000000, and each must be from 0 to below 1."},
      {"ranks", "ranks_agree", "optimizer/Bad/ranks_agree",
       "after 12 updates, and synchronize where it has one, the ranks' parameters differ, with {\"lr\":0.001}."},
      {"ranks", "calls", "optimizer/Bad/ranks_agree", "rank 0 calls split, rank 1 nothing more."},
      {"ranks", "gradient_mode", "optimizer/Bad/gradient_mode",
       "asked twice about update 0, gradient_mode gives two answers."},
      {"ranks", "ranks_resume", "optimizer/Bad/ranks_resume", "saved and loaded, a run goes another way at update 12"},
      {"tuner", "points_outside", "tuner/Bad/points", "it chose point 64, and there are 64, from 0 on."},
      {"sampler", "samples_few", "sampler/Bad/samples", "step 0 has sample -1, or none, and there are 1000."},
      {"dataset", "describe_json", "dataset/Bad/describe", "describe does not give JSON: "},
      {"dataset", "describe_samples", "dataset/Bad/describe",
       "describe must tell \"samples\", a whole number above 0, "},
      {"dataset", "describe_bytes", "dataset/Bad/describe",
       "describe must tell \"bytes_per_token\", a number above 0, or"},
      {"dataset", "describe_fingerprint", "dataset/Bad/describe", "describe must tell a \"fingerprint\", a text,"},
      {"dataset", "rows_count", "dataset/Bad/rows", "read of 4 samples gives 'input_ids' without 4 rows."},
      {"dataset", "rows_length", "dataset/Bad/rows", "'input_ids' has 8 tokens, and describe tells sequence_length 9."},
      {"dataset", "again_instance", "dataset/Bad/again", "another instance reads something else of the same file."},
      {"dataset", "missing_name", "dataset/Bad/missing", "open of a file that is not there does not name it: "},
      {"metric", "plan_needs", "metric/Bad/plan", "it needs sums, and has no function totals."},
      {"metric", "plan_beyond", "metric/Bad/plan", "measure writes beyond its numbers."},
      {"metric", "again_instance", "metric/Bad/again", "two instances measure two things."},
      {"attention", "facts_again", "attention/Bad/facts", "facts differ from one call to the next."},
      {"attention", "cells_beyond", "attention/Bad/cells", "writes beyond its cells."},
      {"attention", "calls_leak", "attention/Bad/calls_leak", " bytes of each call of layout."},
      {"attention_kernel", "calls_leak", "attention/Bad/calls_leak", " bytes of each call of forward and backward."},
      {"attention_kernel", "forward_cell", "attention/Bad/forward", "out, "},
      {"attention_kernel", "forward_causal", "attention/Bad/forward", "out, causal, "},
      {"attention_kernel", "forward_lse", "attention/Bad/forward", "log_sum_exp, "},
      {"attention_kernel", "gradients", "attention/Bad/gradients", "gradient of k, "},
      {"attention_kernel", "terms", "attention/Bad/terms", "out with terms: "},
      {"attention_kernel", "terms_gradient", "attention/Bad/terms", "gradient of a term that is added: "},
      {"attention_kernel", "threads", "attention/Bad/threads", "results depend on the number of threads."},
      {"attention_kernel", "", "attention/BadBare/functions",
       "it has neither facts and layout, nor prepare, release, forward and backward."},
      {"observer", "", "observer/BadAttach/attach",
       "its code attaches to events, but the manifest's attach does not say so."},
  };
  for (const auto& [kind, function] :
       {std::pair("scheduler", "rate"), std::pair("optimizer", "update"), std::pair("monitor", "write"),
        std::pair("observer", "event in a step"), std::pair("model", "forward"), std::pair("offload", "start and poll"),
        std::pair("pacing", "difficulty"), std::pair("sampler", "next"), std::pair("tuner", "ask"),
        std::pair("dataset", "read"), std::pair("metric", "measure")}) {
    all.push_back({kind, "calls_leak", std::string(kind) + "/Bad/calls_leak",
                   std::string(" bytes of each call of ") + function + "."});
  }
  const std::pair<std::string, std::vector<std::string>> kinds[] = {
      {"optimizer",
       {"finite", "deterministic", "shard_invariance", "several_calls", "state_round_trip", "zero_gradient",
        "zero_rate", "guards", "nan_gradient", "gradient_dtypes", "compute_copy", "grad_scale", "quadratic"}},
      {"scheduler", {"finite", "pure", "any_order", "resume"}},
      {"monitor", {"many", "odd_metrics", "texts", "full_disk", "close_twice", "never_opened", "resumed"}},
      {"observer", {"events", "state_round_trip", "layers", "batch"}},
      {"model",
       {"visit", "describe", "loss", "evaluation", "deterministic", "learns", "outputs", "decode", "transformers"}},
      {"offload", {"sizes", "in_flight", "order", "short_read", "full_disk", "fork"}},
      {"dataset", {"describe", "rows", "again", "threads", "missing"}},
      {"metric", {"plan", "batches", "again"}},
      {"pacing", {"range", "pure"}},
      {"sampler", {"samples", "ranks", "resume"}},
      {"tuner", {"points", "failures", "repeats", "resume"}},
      {"attention", {"facts", "cells", "pure"}},
      {"attention_kernel", {}},
      {"compression", {}}};
  for (const Control& control : offload_controls()) all.push_back(control);
  for (const Control& control : compression_controls()) all.push_back(control);
  const char* const creation[] = {"create_defaults", "create_bounds",  "create_wrong_params", "create_unterminated",
                                  "create_leaks",    "create_threads", "create_footprint"};
  for (const auto& [kind, rules] : kinds) {
    const std::string prefix = (kind == "attention_kernel" ? "attention" : kind) + "/Bad/";
    for (const auto& rule : rules) all.push_back({kind, rule, prefix + rule, ""});
    for (const auto* rule : creation) {
      if (kind == "scheduler" && rule == std::string("create_footprint")) continue;  // above, with its text
      all.push_back({kind, rule, prefix + rule, ""});
    }
  }
  return all;
}

std::vector<Result> run(const std::string& name, const std::string& rule, const std::string& only,
                        double timeout_s = 60) {
  ::setenv("CAPSTAN_BAD", rule.c_str(), 1);
  return check(plugin(name), {.only = only, .timeout_s = timeout_s});
}

class NegativeControl : public ::testing::TestWithParam<Control> {};

TEST_P(NegativeControl, IsFoundByTheCaseOfItsRule) {
  const Control control = GetParam();
#ifdef __SANITIZE_ADDRESS__
  if (control.rule.find("leak") != std::string::npos)
    GTEST_SKIP() << "AddressSanitizer allocates in place of the C library";
#endif
  const auto results = run(control.plugin, control.rule, control.found_by, control.rule == "hang" ? 2 : 60);

  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, Outcome::kFailed) << results[0].text;
  EXPECT_THAT(results[0].text, ::testing::HasSubstr(control.text));
}

INSTANTIATE_TEST_SUITE_P(EveryRule, NegativeControl, ::testing::ValuesIn(controls()),
                         [](const ::testing::TestParamInfo<Control>& info) {
                           return info.param.plugin + "_" + info.param.rule;
                         });

/// Code for a device, on the emulated one.
class CheckOnADevice : public ::testing::Test {
 protected:
  static std::vector<Result> check_with(const std::string& rule, const std::string& only) {
    ::setenv("CAPSTAN_BAD", rule.c_str(), 1);
    return check(plugin("device"), {.only = only, .device = "emulated"});
  }
  static std::string failure(const std::string& rule, const std::string& only) {
    const auto results = check_with(rule, "optimizer/Bad/" + only);
    EXPECT_EQ(results.size(), 1u);
    return results.empty() || results[0].outcome != Outcome::kFailed ? "" : results[0].text;
  }
};

TEST_F(CheckOnADevice, PassesWhatBreaksNothing) {
  for (const Result& result : check_with("", "")) {
    EXPECT_NE(result.outcome, Outcome::kFailed) << result.name << ": " << result.text;
  }
}

TEST_F(CheckOnADevice, FindsHostCodeThatTouchesTheDevicesMemory) {
  EXPECT_THAT(failure("host_access", "finite"), ::testing::HasSubstr("crashed: signal 11"));
}

TEST_F(CheckOnADevice, FindsAKernelThatRunsOverABlock) {
  EXPECT_THAT(failure("overrun", "finite"), ::testing::HasSubstr("crashed: signal 11"));
}

TEST_F(CheckOnADevice, FindsAnUpdateThatWaits) {
  EXPECT_EQ(failure("device_waits", "device_waits"),
            "update 1 of three parameters waits for the device 1 times. Launch, and return.");
}

/// A build of this tree: of an optimizer for the CPU, or of its kernel for devices.
std::filesystem::path built(const std::string& file) {
  return std::filesystem::path(CAPSTAN_TEST_BUILD_DIR "/lib/capstan") / file;
}

TEST_F(CheckOnADevice, ComparesUpdatesWithThoseOfTheBuildForTheCpu) {
  ::setenv("CAPSTAN_BAD", "", 1);
  const auto results = check(
      built("emulated/libcapstan_optimizer_lion_cuda_on_cpu.so"),
      {.only = "beside_cpu", .device = "emulated", .beside = built("plugins/optimizers/libcapstan_optimizer_lion.so")});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, Outcome::kPassed) << results[0].text;
  EXPECT_EQ(results[0].rule, "An update on the device gives the bits of the build for the CPU.");

  // One has momentum, which shows from the second update on, and the other has none.
  const auto others =
      check(plugin("device"), {.only = "beside_cpu", .device = "emulated", .beside = plugin("optimizer")});
  ASSERT_EQ(others.size(), 1u);
  EXPECT_EQ(others[0].outcome, Outcome::kFailed);
  EXPECT_THAT(others[0].text,
              ::testing::MatchesRegex("with gradients of Float, element 0 after update 1 is .* on the device and .* on "
                                      "the CPU\\."));
}

TEST_F(CheckOnADevice, ComparesWhatRunsAnywhereWithItself) {
  const auto results =
      check(built("plugins/optimizers/libcapstan_optimizer_muon.so"), {.only = "beside_cpu", .device = "emulated"});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, Outcome::kPassed) << results[0].text;
}

TEST_F(CheckOnADevice, SaysThatTheOtherFileLacksTheOptimizer) {
  EXPECT_THAT(
      [] {
        check(built("emulated/libcapstan_optimizer_lion_cuda_on_cpu.so"),
              {.device = "emulated", .beside = plugin("optimizer")});
      },
      ::testing::ThrowsMessage<ConfigError>(
          ::testing::EndsWith("has no optimizer 'Lion' for the CPU. Name the file of the build for the CPU.")));
}

TEST_F(CheckOnADevice, SaysWhatIsMadeForNoSuchDevice) {
  EXPECT_THAT([&] { check(plugin("optimizer"), {.device = "emulated"}); },
              ::testing::ThrowsMessage<ConfigError>(::testing::StartsWith(
                  "--device emulated: no component of bad-optimizer is made for it. They are made for cpu.")));
  EXPECT_THAT([&] { check(plugin("device"), {.device = "npu"}); },
              ::testing::ThrowsMessage<ConfigError>(::testing::StartsWith(
                  "--device npu: no component of bad-device is made for it. They are made for cuda.")));
}

TEST(NegativeControls, CoverEveryCaseOfEveryKind) {
  std::set<std::string> found;
  for (const Control& control : controls()) found.insert(control.found_by);
  // The first is what the plugins of tests/core/registry break, the second needs a plugin that cannot be loaded.
  found.insert({"loading/manifest", "loading/load"});
  for (const char* kind :
       {"optimizer", "ranks", "scheduler", "monitor", "model", "offload", "offload_ranges", "compression", "observer",
        "pacing", "dataset", "metric", "sampler", "tuner", "attention", "attention_kernel"}) {
    for (const CaseName& test : cases(plugin(kind))) {
      // Some slips have a component of their own.
      if (test.name.find("BadAttach") != std::string::npos || test.name.find("BadNamed") != std::string::npos ||
          test.name.find("BadBare") != std::string::npos || test.name == "observer/Bad/attach" ||
          test.name == "attention/Bad/functions")
        continue;
      EXPECT_TRUE(found.contains(test.name)) << test.name << " has no plugin that breaks it";
    }
  }
}

TEST(NegativeControls, ArePassedWhenTheyBreakNothing) {
  for (const char* kind : {"optimizer", "ranks", "scheduler", "monitor", "model", "offload", "offload_ranges",
                           "loading", "pacing", "dataset", "metric", "sampler", "tuner", "attention"}) {
    for (const Result& result : run(kind, "", ""))
      EXPECT_NE(result.outcome, Outcome::kFailed) << kind << result.name << result.text;
  }
  for (const std::string kind : {"observer", "compression"}) {
    for (const Result& result : run(kind, "", kind + "/Bad/")) {
      EXPECT_NE(result.outcome, Outcome::kFailed) << result.name << result.text;
    }
  }
  for (const Result& result : run("attention_kernel", "", "attention/Bad/")) {
    EXPECT_NE(result.outcome, Outcome::kFailed) << result.name << result.text;
  }
}

TEST(Check, FindsAFileThatIsNoPlugin) {
  const auto results = check(CAPSTAN_TEST_BUILD_DIR "/tests/registry_plugins/libcapstan_test_bar.so");

  EXPECT_FALSE(passed(results));
  EXPECT_EQ(results[0].name, "loading/manifest");
  EXPECT_EQ(results[0].outcome, Outcome::kFailed);
  EXPECT_THAT(results[0].text, ::testing::HasSubstr("not a Capstan plugin (no .capstan.manifest section)."));
}

TEST(Check, FindsASymbolThatIsNowhere) {
  const auto results = check(CAPSTAN_TEST_BUILD_DIR "/tests/registry_plugins/libcapstan_monitor_broken_symbol.so",
                             {.only = "loading/load"});

  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results[0].text, ::testing::HasSubstr("undefined symbol 'nowhere_at_all(int)'"));
}

/// Optimizers with blocks, bytes, states for some shapes and sums over the model, some of them without what they
/// promise.
class CheckStates : public ::testing::Test {
 protected:
  static std::vector<Result> check_only(const std::string& cases) {
    return check(CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins/libcapstan_optimizer_test_states.so",
                 {.only = "optimizer/" + cases});
  }
};

TEST_F(CheckStates, CutsParametersWhereBlocksEnd) {
  for (const char* cases : {"StateKinds/shard_invariance", "StateKinds/state_round_trip", "StateKinds/guards",
                            "ModelMeasures/shard_invariance", "ModelMeasures/several_calls"}) {
    const auto results = check_only(cases);
    ASSERT_EQ(results.size(), 1u) << cases;
    EXPECT_EQ(results[0].outcome, Outcome::kPassed) << cases << ": " << results[0].text;
  }
}

TEST_F(CheckStates, FindsAFunctionWithoutItsKeyAndAKeyWithoutItsFunction) {
  EXPECT_EQ(check_only("NoFunction/finite").at(0).text,
            "the manifest has measures_model, but the optimizer has no function measure_model.");
  EXPECT_EQ(check_only("NoKey/finite").at(0).text,
            "its code has a function measure_model, but the manifest has no measures_model.");
}

TEST(Check, TriesNothingMoreOnceTheFileDoesNotLoad) {
  const auto results = run("loading", "exit", "");

  std::map<Outcome, int> outcomes;
  for (const Result& result : results) {
    ++outcomes[result.outcome];
    if (result.name == "loading/load") {
      EXPECT_EQ(result.text, "ended the process with exit code 7.");
    }
  }
  EXPECT_EQ(outcomes[Outcome::kFailed], 1);
  EXPECT_EQ(outcomes[Outcome::kPassed], 4);
  EXPECT_GT(outcomes[Outcome::kNotTried], 10);
  EXPECT_EQ(line(results.back(), "x.so", {}), "not tried  " + results.back().name + ": loading/load failed.");
  EXPECT_FALSE(passed(results));
}

TEST(Check, WaitsOnceForAFileThatHangsAsItIsLoaded) {
  ::setenv("CAPSTAN_BAD", "hang", 1);
  const auto results = check(plugin("loading"), {.timeout_s = 1});

  EXPECT_EQ(results.back().outcome, Outcome::kNotTried);
  const auto load =
      std::find_if(results.begin(), results.end(), [](const Result& result) { return result.name == "loading/load"; });
  EXPECT_EQ(load->text, "did not end within 1 s (--timeout).");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Check, SaysHowAFileWithAddressSanitizerIsTried) {
  const auto results = check(plugin("sanitized"), {.only = "loading/load"});

  EXPECT_EQ(results.at(0).text,
            "was built with -fsanitize=address, whose library must be in the process from its start. Run the kit under "
            "it:\n        LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 capstan plugins "
            "check " +
                plugin("sanitized").string());
}
#endif

TEST(Check, SaysThatAThreadIsLeftWhereItsMemoryWouldShow) {
  const auto results = run("scheduler", "create_detached", "create_leaks");

  EXPECT_EQ(results.at(0).text,
            "starts a thread each time it is created, which is still there when it has been destroyed.");
}

TEST(Check, RefusesAParameterThatNoComponentHas) {
  Json params = Json::object();
  params["pert"] = 1;
  EXPECT_THAT(
      [&] { check(plugin("observer"), {.params = params}); },
      ::testing::ThrowsMessage<ConfigError>(
          "--params: no component of bad-observer has a parameter 'pert'. 'capstan plugins inspect' shows what it "
          "has."));
}

TEST(Check, ReportsAsJsonAndAsLines) {
  const Options options{.seed = 7, .only = "optimizer/Bad/guards"};
  ::setenv("CAPSTAN_BAD", "guards", 1);
  const auto results = check(plugin("optimizer"), options);
  const Json json = report(plugin("optimizer"), options, results);

  EXPECT_EQ(json.at("plugin").as_string(), plugin("optimizer").string());
  EXPECT_EQ(json.at("seed").as_string(), "7");
  EXPECT_FALSE(json.at("passed").as_bool());
  EXPECT_EQ(json.at("cases").as_array()[0].at("outcome").as_string(), "failed");
  EXPECT_EQ(json.at("cases").as_array()[0].at("name").as_string(), "optimizer/Bad/guards");
  EXPECT_EQ(line(results[0], "x.so", options),
            "failed  optimizer/Bad/guards: writes outside of a slot of 1 elements.\n"
            "        the rule: It writes its slots and nothing else.\n"
            "        alone: capstan plugins check x.so --in-process --only optimizer/Bad/guards --seed 7");
}

TEST(Check, RunsInThisProcessForTheDebugger) {
  ::setenv("CAPSTAN_BAD", "", 1);
  const auto results = check(plugin("scheduler"), {.only = "scheduler/Bad/", .in_process = true});

  EXPECT_TRUE(passed(results));
}

TEST(Check, PassesNothingWhenNoCaseIsRun) {
  EXPECT_FALSE(passed(check(plugin("scheduler"), {.only = "no such case"})));
}

}  // namespace
}  // namespace capstan::conformance
