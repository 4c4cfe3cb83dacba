// The profiler on whole training runs of the built-in models, against formulas by hand and torch.utils.flop_counter.

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGptBatch = 2, kSeq = 128, kWidth = 128, kLayers = 4, kVocab = 256;

class FlopsProfiler : public ::testing::Test {
 protected:
  /// Trains `steps` steps with the profiler and `sections` in the configuration.
  ProcessResult train(const std::string& model, int batch, const std::string& sections, int steps = 2) {
    write_bytes(folder_ / "text.txt", some_text());
    write_bytes(folder_ / "config.json", "{\"train_batch_size\": " + std::to_string(batch) +
                                             R"(, "gradient_clipping": 1.0, "steps_per_print": null,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}}, )" +
                                             sections + R"("model": )" + model + "}}");
    return run_capstan(folder_,
                       {"train", "--config", "config.json", "--data", "text.txt", "--steps", std::to_string(steps)});
  }
  /// The same, through capstan.observers, whose parameters include files for exact numbers.
  Json profile(const std::string& model, int batch, const std::string& more = "", const std::string& top = "",
               const std::string& capstan = "") {
    const ProcessResult result =
        train(model, batch,
              top + R"("capstan": {"observers": [{"type": "flops_profiler", "params": {"json_file": "deep/profile.json",
        "trace_file": "trace.json", "output_file": "deep/report.txt", "peak_tflops": 0.001)" +
                  more + "}}], " + capstan);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(read_bytes(folder_ / "deep/profile.json"));
  }
  std::string report() const { return read_bytes(folder_ / "deep/report.txt"); }

  TemporaryFolder folder_;
};

const char* const kGpt = R"({"type": "gpt", "params": {"size": "tiny"}})";
const char* const kMlp = R"({"type": "mlp", "params": {"context": 8, "d": 16, "hidden": 64, "layers": 2, "seq": 32}})";

double forward(const Json& profile, const char* what) { return profile.at("model").at("forward").at(what).as_number(); }
double backward(const Json& profile, const char* what) {
  return profile.at("model").at("backward").at(what).as_number();
}

/// The module of that path.
const Json* find(const Json& module, const std::string& path) {
  if (module.at("path").as_string() == path) return &module;
  for (const Json& one : module.at("children").as_array()) {
    if (const Json* found = find(one, path)) return found;
  }
  return nullptr;
}
double of(const Json& profile, const std::string& path, const char* direction, const char* what) {
  const Json* module = find(profile.at("model"), path);
  if (module == nullptr) ADD_FAILURE() << "no module " << path;
  return module ? module->at(direction).at(what).as_number() : 0;
}

struct Recorded {
  double batch, forward, backward;
};
std::map<std::string, Recorded> recorded() {
  std::ifstream in(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/observers/recorded_flops.tsv");
  std::map<std::string, Recorded> out;
  std::string line, model;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    Recorded row{};
    words >> model >> row.batch >> row.forward >> row.backward;
    out[model] = row;
  }
  return out;
}

TEST_F(FlopsProfiler, CountsTheGptExactlyAsTheFormulasSay) {
  const Json gpt = profile(kGpt, 2);
  const double tokens = kGptBatch * kSeq;
  const double linear = tokens * kLayers * 12 * kWidth * kWidth + tokens * kWidth * kVocab;
  const double attention = kLayers * tokens * kSeq * 2 * kWidth;
  EXPECT_EQ(forward(gpt, "macs"), linear + attention);

  // Beside two flops a MAC: GELU one an element, layer norms five, sums one an element of the result.
  const double gelu = kLayers * tokens * 4 * kWidth, norms = (2 * kLayers + 1) * 5 * tokens * kWidth;
  const double sums = tokens * kWidth + kLayers * 2 * tokens * kWidth;
  EXPECT_EQ(forward(gpt, "flops"), 2 * (linear + attention) + gelu + norms + sums);

  // Each linear layer has two products in backward, attention five, of which one is the scores again.
  EXPECT_EQ(backward(gpt, "macs"), 2 * linear + kLayers * tokens * kSeq * 5 * kWidth);
}

TEST_F(FlopsProfiler, CountsTheBlocksThatSparseAttentionSets) {
  const Json dense = profile(kGpt, 2), sparse = profile(kGpt, 2, "", R"("sparse_attention": {"mode": "bslongformer",
    "block": 16, "num_sliding_window_blocks": 3, "global_block_indices": [0]}, )");
  // Eight blocks a sequence. Rows see their own block, the one before and the first: 1 + 2 + 6 x 3 blocks.
  const double scores = kLayers * kGptBatch * (1 + 2 + 6 * 3) * 16 * 16;
  const double all = kLayers * kGptBatch * kSeq * kSeq;
  EXPECT_EQ(forward(sparse, "macs"), forward(dense, "macs") - (all - scores) * 2 * kWidth);
  EXPECT_EQ(backward(sparse, "macs"), backward(dense, "macs") - (all - scores) * 5 * kWidth);
  EXPECT_EQ(of(sparse, "blocks.3.attn", "forward", "macs"),
            kGptBatch * (kSeq * 4 * kWidth * kWidth + 21 * 16 * 16 * 2 * kWidth));
}

// Of a head in chunks, products that make gradients come in forward.
TEST_F(FlopsProfiler, CountsTheProductsOfAHeadInChunksWhereTheyAreComputed) {
  const Json all = profile(kGpt, 2), chunks = profile(kGpt, 2, "", "", R"("run": {"loss_chunk": 100000}, )");
  const double head = kGptBatch * kSeq * kWidth * kVocab;
  EXPECT_EQ(forward(chunks, "macs"), forward(all, "macs") + 2 * head);
  EXPECT_EQ(of(chunks, "head", "forward", "macs"), 3 * head);
  EXPECT_EQ(backward(chunks, "macs"), backward(all, "macs") - 2 * head);
}

TEST_F(FlopsProfiler, CountsTheMlpExactlyAsTheFormulasSay) {
  const Json mlp = profile(kMlp, 4);
  const double positions = 4 * 32;
  const double products = positions * (8 * 16 * 64 + 64 * 64 + 64 * 256);
  EXPECT_EQ(forward(mlp, "macs"), products);
  EXPECT_EQ(forward(mlp, "flops"), 2 * products);  // tanh and the loss count nothing
  EXPECT_EQ(backward(mlp, "macs"), 2 * products);
}

TEST_F(FlopsProfiler, AgreesWithTorchsFlopCounterForwardAndBackward) {
  const auto figures = recorded();
  for (const auto& [name, model] : {std::pair("gpt", kGpt), std::pair("mlp", kMlp)}) {
    const Recorded& torch = figures.at(name);
    const Json ours = profile(model, static_cast<int>(torch.batch));
    EXPECT_NEAR(2 * forward(ours, "macs") / torch.forward, 1, 1e-3) << name;
    EXPECT_NEAR(2 * backward(ours, "macs") / torch.backward, 1, 1e-3) << name;
  }
}

TEST_F(FlopsProfiler, AttributesOperatorsToTheModulesThatRanThem) {
  const Json gpt = profile(kGpt, 2);
  const double tokens = kGptBatch * kSeq;
  for (const std::string block : {"blocks.0", "blocks.3"}) {
    // Attention and GELU belong to no parameter: they run between two that do.
    EXPECT_EQ(of(gpt, block + ".attn", "forward", "macs"), tokens * (4 * kWidth * kWidth + kSeq * 2 * kWidth));
    EXPECT_EQ(of(gpt, block + ".mlp", "forward", "flops"), 2 * tokens * 8 * kWidth * kWidth + tokens * 4 * kWidth);
    EXPECT_EQ(of(gpt, block + ".ln1", "forward", "flops"), 5 * tokens * kWidth);
    EXPECT_EQ(of(gpt, block + ".attn.qkv", "backward", "macs"), 2 * tokens * 3 * kWidth * kWidth);
    EXPECT_EQ(of(gpt, block + ".attn", "backward", "macs"),
              2 * tokens * 4 * kWidth * kWidth + tokens * kSeq * 5 * kWidth);
  }
  EXPECT_EQ(find(gpt.at("model"), "blocks.0.attn.qkv")->at("class"), Json("Linear"));
  EXPECT_EQ(find(gpt.at("model"), "blocks.0.mlp")->at("params"), Json(8 * kWidth * kWidth + 5 * kWidth));
  EXPECT_GT(of(gpt, "blocks.0.attn", "forward", "latency_ms"), 0);
  EXPECT_GT(of(gpt, "blocks.0.attn", "backward", "latency_ms"), 0);
}

TEST_F(FlopsProfiler, AddsUpTheMicroBatchesOfTheStep) {
  const Json whole = profile(kMlp, 4);
  const Json split = profile(kMlp, 4, "", R"("gradient_accumulation_steps": 2, )");

  EXPECT_EQ(forward(split, "flops"), forward(whole, "flops"));
  EXPECT_EQ(backward(split, "macs"), backward(whole, "macs"));
  EXPECT_EQ(split.at("forward").at("aten::matmul").at("calls"), Json(6));
  EXPECT_EQ(split.at("samples"), Json(4.0));
}

/// Again runs all of a block but its last projection, which nothing of backward asks for.
TEST_F(FlopsProfiler, CountsWhatActivationCheckpointingRunsAgainApart) {
  const Json plain = profile(kGpt, 2),
             again = profile(kGpt, 2, "", R"("pipeline": {"activation_checkpoint_interval": 1}, )");

  const double tokens = kGptBatch * kSeq;
  const double matrices = tokens * kWidth * kWidth * (3 + 1 + 4) + kGptBatch * 2 * kSeq * kSeq * kWidth;
  EXPECT_DOUBLE_EQ(again.at("recomputed").at("macs").as_number(), kLayers * matrices);
  EXPECT_EQ(plain.at("recomputed").at("macs").as_number(), 0);
  EXPECT_EQ(backward(again, "macs"), backward(plain, "macs"));
  EXPECT_EQ(backward(again, "flops"), backward(plain, "flops"));
  EXPECT_EQ(forward(again, "flops"), forward(plain, "flops"));
  EXPECT_THAT(report(), HasSubstr("flops of activations computed again, counted:"));
}

TEST_F(FlopsProfiler, PrintsTheReportOfItsSectionToStandardOutput) {
  const ProcessResult result =
      train(kMlp, 4, R"("flops_profiler": {"enabled": true, "profile_step": 1, "top_modules": 2}, "capstan": {)", 3);

  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string& out = result.out;
  EXPECT_THAT(out, HasSubstr("--------------------------- Capstan Flops Profiler ---------------------------\n"
                             "Profile Summary at step 1:\n"));
  // 7340032 flops, by hand in the test above; 257 x 16 + 128 x 64 + 64 + 64 x 64 + 64 + 64 x 256 + 256 parameters.
  const std::string spaces(70, ' ');
  const auto row = [&](const std::string& label, const std::string& value) {
    return label + spaces.substr(label.size()) + "  " + value;
  };
  EXPECT_THAT(out, HasSubstr(row("batch size per GPU:", "4 ")));
  EXPECT_THAT(out, HasSubstr(row("params per GPU:", "33.17 K")));
  EXPECT_THAT(out, HasSubstr(row("fwd MACs per GPU:", "3.67 MMACs")));
  EXPECT_THAT(out, HasSubstr(row("fwd flops per GPU:", "7.34 M")));
  EXPECT_THAT(out, HasSubstr(row("bwd MACs per GPU, counted:", "7.34 MMACs")));
  EXPECT_THAT(out, HasSubstr("bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency:"));
  EXPECT_THAT(out, HasSubstr("model flop utilisation"));
  EXPECT_THAT(out,
              HasSubstr("Top 2 modules in terms of params, MACs or fwd latency at different model depths:\n"
                        "depth 0:\n    params      - {'Mlp': '33.17 K'}\n    MACs        - {'Mlp': '3.67 MMACs'}\n"));
  // The innermost depth is there too.
  EXPECT_THAT(out, HasSubstr("depth 2:\n    params      - {'Linear': '12.42 K'}\n"));
  EXPECT_THAT(out, HasSubstr("  (tok_emb): Embedding(\n    4.11 K = 12.4% Params, 0 MACs = 0% MACs, "));
  EXPECT_THAT(out, HasSubstr("  16.64 K = 50.17% Params, 2.1 MMACs = 57.14% MACs, "));
  // Switches the timers on.
  EXPECT_THAT(out, HasSubstr("[Rank 0] time (ms) | fwd: "));
}

TEST_F(FlopsProfiler, LeavesOutWhatIsNotAskedFor) {
  profile(kMlp, 4, R"(, "detailed": false, "module_depth": 0, "recompute_fwd_factor": 1.0)");
  const std::string text = report();

  EXPECT_THAT(text, Not(HasSubstr("Detailed Profile")));
  EXPECT_THAT(text, HasSubstr("depth 0:\n"));
  EXPECT_THAT(text, Not(HasSubstr("depth 1:\n")));
  EXPECT_THAT(text, HasSubstr("bwd FLOPS per GPU = 3 * fwd flops per GPU / bwd latency:"));
  EXPECT_THAT(text, HasSubstr("peak FLOPS (given):"));
  EXPECT_THAT(text, HasSubstr("1 GFLOPS"));
}

TEST_F(FlopsProfiler, WritesATraceOfEveryOperator) {
  profile(kMlp, 4);
  const Json trace = Json::parse(read_bytes(folder_ / "trace.json"));

  double end = 0, flops = 0;
  int products = 0;
  for (const Json& event : trace.at("traceEvents").as_array()) {
    EXPECT_EQ(event.at("ph"), Json("X"));
    EXPECT_GE(event.at("ts").as_number() + 1e-3, end);  // one thread: one after another
    end = event.at("ts").as_number() + event.at("dur").as_number();
    products += event.at("name") == Json("aten::matmul");
    if (event.at("cat") == Json("forward")) flops += event.at("args").at("flops").as_number();
  }
  EXPECT_EQ(products, 3);
  EXPECT_EQ(flops, 7340032);
}

TEST_F(FlopsProfiler, ChangesNothingOfTheTraining) {
  const auto loss = [&](const std::string& sections) {
    const std::string out =
        train(kMlp, 4, R"("csv_monitor": {"enabled": true, "output_path": "m"}, )" + sections, 4).out;
    const std::string rows = read_bytes(folder_ / "m/DeepSpeedJobName/Train_Samples_train_loss.csv");
    std::filesystem::remove_all(folder_ / "m");
    return rows;
  };
  EXPECT_EQ(loss(R"("capstan": {)"), loss(R"("flops_profiler": {"enabled": true, "output_file": "r"}, "capstan": {)"));
}

TEST_F(FlopsProfiler, NamesTheFileThatItCannotWrite) {
  const ProcessResult result =
      train(kMlp, 4, R"("flops_profiler": {"enabled": true, "output_file": "."}, "capstan": {)");

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("observer 'flops_profiler': .: "));
}

}  // namespace
}  // namespace capstan::cli
