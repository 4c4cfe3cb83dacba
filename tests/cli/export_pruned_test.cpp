// Models that were pruned leave smaller, and compute the same.

#include <gmock/gmock.h>

#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kScript = CAPSTAN_TEST_SOURCE_DIR "/tests/cli/compressed_readers.py";

std::string technique(const std::string& name, const std::string& shared, const std::string& groups) {
  return "\"" + name + R"(": {"shared_parameters": {"enabled": true, )" + shared + R"(}, "different_groups": {)" +
         groups + "}}";
}

std::string group(const std::string& name, double ratio, const std::string& modules, const std::string& related) {
  return "\"" + name + R"(": {"params": {"dense_ratio": )" + std::to_string(ratio) + R"(}, "modules": [")" + modules +
         "\"]" + (related.empty() ? "" : R"(, "related_modules": [[")" + related + "\"]]") + "}";
}

const std::string kRows = technique("row_pruning", R"("method": "topk")", group("g", 0.5, "mlp.fc", "mlp.proj"));
const std::string kHeads = technique("head_pruning", R"("num_heads": 4)", group("g", 0.5, "attn.proj", "attn.qkv"));
const std::string kWeights = technique("sparse_pruning", R"("method": "l1")", group("g", 0.25, "attn", ""));
const std::string kEightBits = R"("weight_quantization": {"shared_parameters": {"enabled": true,
  "quantize_weight_in_forward": true, "quantize_groups": 64}, "different_groups": {"w": {
  "params": {"start_bits": 8, "target_bits": 8}, "modules": ["mlp"]}}})";

class ExportPruned : public ::testing::Test {
 protected:
  void SetUp() override {
    write_bytes(folder_ / "text.txt", some_text().substr(0, 2 * 32 * 4 + 1));
    write_bytes(folder_ / "short.txt", some_text().substr(0, 33));
  }

  /// Trains a gpt of two blocks into `ckpt`.
  void train(const std::string& compressions, int steps = 4) {
    write_bytes(folder_ / "config.json",
                R"({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "gradient_clipping": 1, "compression_training": {)" +
                    compressions + R"(}, "capstan": {"model": {"type": "gpt", "params": {"layers": 2, "heads": 4,
      "seq": 32, "d": 64}}}})");
    run({"train", "--config", "config.json", "--data", "text.txt", "--steps", std::to_string(steps), "--save", "ckpt"});
  }
  ProcessResult run(const std::vector<std::string>& words, bool succeeds = true) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code == 0, succeeds) << result.out << result.err;
    return result;
  }
  std::string write(const std::string& format, const std::string& out) const {
    return run({"export", "--checkpoint", "ckpt", "--compressed", "--to", format, "--out", out}).out;
  }
  std::string refused(const std::string& format) const {
    const ProcessResult result =
        run({"export", "--checkpoint", "ckpt", "--compressed", "--to", format, "--out", "out"}, false);
    EXPECT_FALSE(fs::exists(folder_ / "out")) << format;
    EXPECT_FALSE(fs::exists(folder_ / "out.compression.json")) << format;
    return result.err;
  }
  double loss_of(const std::string& flag, const std::string& weights, const std::string& data = "text.txt") const {
    const std::string out =
        run({"eval", "--config", "config.json", flag, weights, "--data", data, "--set", "train_batch_size=1"}).out;
    std::smatch found;
    EXPECT_TRUE(std::regex_search(out, found, std::regex("eval_loss=([0-9.]+)"))) << out;
    return found.empty() ? 0 : std::stod(found[1]);
  }
  double read(std::vector<std::string> words) const {
    words.insert(words.begin(), {test::reader_python(), "-W", "ignore", kScript});
    const ProcessResult result = run_process(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::stod(result.out);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::uintmax_t size(const std::string& file) const { return fs::file_size(folder_ / file); }

  TemporaryFolder folder_;
};

TEST_F(ExportPruned, RemovesRowsAndHeadsWithoutChangingWhatTheModelComputes) {
  train(kRows + ", " + kHeads);
  run({"export", "--checkpoint", "ckpt", "--to", "safetensors", "--out", "whole.safetensors"});
  EXPECT_THAT(write("safetensors", "small.safetensors"),
              AllOf(HasSubstr("removed in part, F32"), HasSubstr("ff [128,128], kept_heads [2,2]")));
  EXPECT_NEAR(loss_of("--init-from", "small.safetensors"), loss_of("--checkpoint", "ckpt"), 2e-6);
  // Of a block's 12 d^2 weights a half is left.
  const double blocks = 2 * 12 * 64 * 64 * 4;
  EXPECT_NEAR(static_cast<double>(size("whole.safetensors") - size("small.safetensors")), blocks / 2, 0.02 * blocks);

  const Json record = Json::parse(read_bytes(folder_ / "small.compression.json"));
  const Json& first = record.at("tensors").as_array().front();
  EXPECT_EQ(first.at("name"), Json("blocks.0.mlp.fc.weight"));
  EXPECT_EQ(first.at("of"), Json(256));
  EXPECT_EQ(first.at("kept").size(), 128u);
  EXPECT_EQ(record.at("model").at("params").dump(), R"({"ff":[128,128],"kept_heads":[2,2]})");
}

TEST_F(ExportPruned, KeepsTheCodesOfWhatIsLeft) {
  train(kEightBits + ", " + kRows);
  EXPECT_THAT(write("safetensors", "small.safetensors"), HasSubstr("8 bits, groups of"));
  EXPECT_THAT(write("hf", "opt"), HasSubstr("8 bits, groups of"));
  EXPECT_TRUE(fs::exists(folder_ / "opt/compression.json"));
  if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
  EXPECT_NEAR(read({"opens", path("opt"), path("short.txt")}), loss_of("--checkpoint", "ckpt", "short.txt"), 2e-5);
}

TEST_F(ExportPruned, OpensInTransformersAndLlamaCppWithFewerRows) {
  if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
  train(kRows);
  write("hf", "opt");
  write("gguf", "model.gguf");
  const double ours = loss_of("--checkpoint", "ckpt", "short.txt");
  EXPECT_NEAR(read({"opens", path("opt"), path("short.txt")}), ours, 2e-5);
  EXPECT_NEAR(read({"llama", path("model.gguf"), path("short.txt")}), ours, 2e-4);
}

TEST_F(ExportPruned, RefusesFormatsThatCannotHoldTheShape) {
  train(kHeads);
  EXPECT_THAT(refused("gguf"), HasSubstr("heads were pruned here. Export to safetensors"));
  EXPECT_THAT(refused("hf"), HasSubstr("heads were pruned here. Export to safetensors"));
  const std::string uneven = technique("row_pruning", R"("method": "l1")",
                                       group("a", 0.5, R"(blocks\\.0\\.mlp.fc)", R"(blocks\\.0\\.mlp.proj)") + ", " +
                                           group("b", 0.25, R"(blocks\\.1\\.mlp.fc)", R"(blocks\\.1\\.mlp.proj)"));
  fs::remove_all(folder_ / "ckpt");
  train(uneven);
  EXPECT_THAT(refused("gguf"), HasSubstr("the blocks have different ones"));
  EXPECT_THAT(refused("hf"), HasSubstr("the blocks have different ones"));
  EXPECT_THAT(write("safetensors", "small.safetensors"), HasSubstr("ff [128,64]"));
  EXPECT_NEAR(loss_of("--init-from", "small.safetensors"), loss_of("--checkpoint", "ckpt"), 2e-6);
}

TEST_F(ExportPruned, NamesALayerThatReadsWhatWasRemoved) {
  const std::string crossed = technique("row_pruning", R"("method": "l1")",
                                        group("a", 0.5, R"(blocks\\.0\\.mlp.fc)", R"(blocks\\.1\\.mlp.proj)") + ", " +
                                            group("b", 0.25, R"(blocks\\.1\\.mlp.fc)", R"(blocks\\.0\\.mlp.proj)"));
  train(crossed);
  EXPECT_THAT(refused("safetensors"),
              AllOf(HasSubstr("'blocks.0.mlp.proj.weight' is [64, 64] after pruning, and must be [64, 128]"),
                    HasSubstr("name it in related_modules")));
}

TEST_F(ExportPruned, SaysThatSingleWeightsSaveNothing) {
  train(kWeights);
  write_bytes(folder_ / "small.compression.json", "{}");  // of an earlier export
  const std::string said = write("safetensors", "small.safetensors");
  EXPECT_FALSE(fs::exists(folder_ / "small.compression.json"));
  EXPECT_THAT(said, AllOf(HasSubstr("masked, F32"), HasSubstr("neither the file nor its evaluation gets smaller")));
  EXPECT_THAT(said, Not(HasSubstr("compression.json")));
  EXPECT_NEAR(loss_of("--init-from", "small.safetensors"), loss_of("--checkpoint", "ckpt"), 2e-6);
}

TEST_F(ExportPruned, WaitsForTheFirstUpdateOfAMethod) {
  train(technique("row_pruning", R"("method": "l1", "schedule_offset": 100)", group("g", 0.5, "mlp.fc", "mlp.proj")));
  EXPECT_THAT(refused("safetensors"), HasSubstr("no compression of weights acts yet (schedule_offset)"));
}

TEST_F(ExportPruned, LeavesTrainedScoresOutOfPlainExports) {
  train(kRows);
  write_bytes(folder_ / "plain.json", R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "capstan": {"model":
    {"type": "gpt", "params": {"layers": 2, "heads": 4, "seq": 32, "d": 64}}}})");
  run({"export", "--checkpoint", "ckpt", "--to", "safetensors", "--out", "whole.safetensors"});
  const ProcessResult weights =
      run({"eval", "--config", "plain.json", "--init-from", "whole.safetensors", "--data", "text.txt"});
  EXPECT_THAT(weights.err, Not(HasSubstr("mask_scores")));
  // A run without pruning takes up the checkpoint, and has no use for the scores.
  run({"eval", "--config", "plain.json", "--checkpoint", "ckpt", "--data", "text.txt"});
  run({"train", "--config", "plain.json", "--data", "text.txt", "--steps", "5", "--resume", "ckpt"});
}

}  // namespace
}  // namespace capstan::cli
