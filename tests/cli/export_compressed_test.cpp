// Weights that leave as the codes they were trained with, and what other programs read of them.

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/programs.hpp"
#include "tests/core/checkpoint/small_disk.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kScript = CAPSTAN_TEST_SOURCE_DIR "/tests/cli/compressed_readers.py";

/// How the weights of a run are quantised.
struct Quantised {
  std::string pattern;  // of modules; empty: all linear ones
  int bits, groups;
  std::string type = "symmetric";
  std::string corrections;  // of capstan.corrections
  int offset = 0;
};

class ExportCompressed : public ::testing::Test {
 protected:
  static constexpr int kVocabulary = 256, kPositions = 32;

  void SetUp() override {
    write_bytes(folder_ / "text.txt", some_text().substr(0, 2 * kPositions * 4 + 1));
    write_bytes(folder_ / "short.txt", some_text().substr(0, kPositions + 1));
  }

  /// Trains a gpt of two blocks into `ckpt`.
  void train(const Quantised& how, int d = 64,
             const std::string& model = R"({"type": "gpt", "params": {"layers": 2, "heads": 4, "seq": 32, "d": )") {
    const std::string modules = how.pattern.empty() ? "*" : how.pattern;
    const std::string own = model.back() == ' ' ? std::to_string(d) + "}}" : "";
    write_bytes(
        folder_ / "config.json",
        R"({"train_batch_size": 4, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true,
        "quantize_weight_in_forward": true, "rounding": "nearest", "schedule_offset": )" +
            std::to_string(how.offset) + R"(, "quantize_groups": )" + std::to_string(how.groups) +
            R"(, "quantization_type": ")" + how.type + R"("}, "different_groups": {"wq1": {"params": {
        "start_bits": )" +
            std::to_string(how.bits) + R"(, "target_bits": )" + std::to_string(how.bits) + R"(}, "modules": [")" +
            modules + R"("]}}}},
      "capstan": {"corrections": [)" +
            how.corrections + R"(], "model": )" + model + own + "}}");
    run({"train", "--config", "config.json", "--data", "text.txt", "--steps", "2", "--save", "ckpt", "--overwrite"});
  }

  ProcessResult run(const std::vector<std::string>& words, bool succeeds = true) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code == 0, succeeds) << result.out << result.err;
    return result;
  }
  std::string write(const std::string& format, const std::string& out) const {
    return run({"export", "--checkpoint", "ckpt", "--compressed", "--to", format, "--out", out}).out;
  }
  std::string refused(const std::string& format, const std::string& out = "out") const {
    const ProcessResult result =
        run({"export", "--checkpoint", "ckpt", "--compressed", "--to", format, "--out", out}, false);
    EXPECT_FALSE(fs::exists(folder_ / out));
    return result.err;
  }
  std::uintmax_t size(const std::string& file) const { return fs::file_size(folder_ / file); }
  /// A safetensors file begins with the length of its header, 64 bits, the lowest first.
  std::uint64_t header_bytes(const std::string& file) const {
    std::uint64_t bytes = 0;
    std::ifstream(folder_ / file, std::ios::binary).read(reinterpret_cast<char*>(&bytes), sizeof bytes);
    return bytes;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Runs a reader; what it printed.
  std::string read(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {test::reader_python(), "-W", "ignore", kScript};
    all.insert(all.end(), words.begin(), words.end());
    const ProcessResult result = run_process(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
  static std::vector<std::string> with(std::vector<std::string> words, const Quantised& how) {
    const std::string half = how.corrections.empty() ? "exact" : "half";
    const std::vector<std::string> more = {how.pattern, std::to_string(how.bits), std::to_string(how.groups), how.type,
                                           half};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  double eval_loss() const {
    const std::string out = run({"eval", "--config", "config.json", "--checkpoint", "ckpt", "--data", "short.txt"}).out;
    std::smatch found;
    EXPECT_TRUE(std::regex_search(out, found, std::regex("eval_loss=([0-9.]+)"))) << out;
    return std::stod(found[1]);
  }

  /// All of packed, hf and, where the bits are right, gguf against formulas; `weights` quantised ones.
  void expect_readable(const Quantised& how, int weights, bool gguf) {
    if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
    train(how);
    run({"export", "--checkpoint", "ckpt", "--to", "safetensors", "--out", "masters.safetensors"});
    run({"export", "--checkpoint", "ckpt", "--to", "hf", "--out", "gpt2"});
    write("safetensors", "packed.safetensors");
    write("hf", "opt");
    std::vector<std::string> words = with({"packed", path("packed.safetensors"), path("masters.safetensors")}, how);
    const auto add = [&](const std::vector<std::string>& more) {
      words.push_back(";");
      words.insert(words.end(), more.begin(), more.end());
    };
    add(with({"hf", path("opt"), path("gpt2"), path("short.txt")}, how));
    if (gguf) {
      write("gguf", "model.gguf");
      add(with({"gguf", path("model.gguf"), path("masters.safetensors")}, how));
      add({"llama", path("model.gguf"), path("short.txt")});
    }
    const double ours = eval_loss();
    int packed = 0, blocks = weights;
    double transformers = 0, llama = ours;
    std::istringstream said(read(words));
    said >> packed >> transformers;
    if (gguf) said >> blocks >> llama;
    EXPECT_EQ(packed, weights);
    EXPECT_NEAR(transformers, ours, 2e-6);
    EXPECT_EQ(blocks, weights);
    EXPECT_NEAR(llama, ours, 2e-4);
  }

  TemporaryFolder folder_;
};

TEST_F(ExportCompressed, EightBitsAreReadByOthersAsTheyWereTrained) { expect_readable({"", 8, 1}, 9, true); }

TEST_F(ExportCompressed, FourBitsInGroupsOf32AreReadByOthersAsTheyWereTrained) {
  // 4 x 64 x 64 elements in 512 groups.
  expect_readable({"mlp", 4, 512, "symmetric", R"("fp16-scales")"}, 4, true);
}

TEST_F(ExportCompressed, AsymmetricGroupsAreReadByOthersAsTheyWereTrained) {
  expect_readable({"mlp", 4, 512, "asymmetric"}, 4, false);
}

TEST_F(ExportCompressed, BinaryWeightsAreReadByOthersAsTheyWereTrained) { expect_readable({"", 1, 1}, 9, false); }

TEST_F(ExportCompressed, FilesAreAsSmallAsTheBitsSay) {
  constexpr std::uintmax_t d = 256, blocks = 2;
  train({"", 8, 1}, d);
  const std::uintmax_t codes = blocks * 12 * d * d + kVocabulary * d, scales = 4 * (4 * blocks + 1);
  const std::uintmax_t dense = 4 * ((kVocabulary + kPositions) * d + blocks * 13 * d + 2 * d);
  EXPECT_THAT(write("safetensors", "w.safetensors"),
              AllOf(HasSubstr("8 bits, one group  9 "), HasSubstr("1,638,400  6,553,600     1,638,580  4.00x")));
  EXPECT_LE(size("w.safetensors"), 1.01 * static_cast<double>(codes + scales + dense));
  EXPECT_THAT(write("gguf", "w.gguf"), HasSubstr("Scales are rounded to float16: by "));
  EXPECT_LE(size("w.gguf"), 1.01 * static_cast<double>(codes * 34 / 32 + dense));
  write("hf", "opt");
  EXPECT_LE(size("opt/model.safetensors"), 1.01 * static_cast<double>(codes + scales + dense));
  // In a smaller model the header shows, which names every tensor; the rest is what must be there: a scale and a shape
  // for each of 13 layers, and two rows of zeros before the positions.
  const std::uintmax_t data = size("opt/model.safetensors") - 8 - header_bytes("opt/model.safetensors");
  EXPECT_EQ(data, codes + 13 * (4 + 2 * 8) + dense + 2 * 4 * d);
  // An older file is replaced.
  write("gguf", "w.gguf");
  const std::uintmax_t before = size("w.gguf");
  write("gguf", "w.gguf");
  EXPECT_EQ(size("w.gguf"), before);
}

TEST_F(ExportCompressed, PartsOfStage3GiveTheFileOfWholeWeights) {
  train({"mlp", 4, 512});
  std::vector<std::string> files;
  for (const char* stage : {"0", "3"}) {
    fs::remove_all(folder_ / "ckpt");
    run({"launch", "-n", "2", "train", "--config", "config.json", "--data", "text.txt", "--steps", "2", "--save",
         "ckpt", "--set", std::string("zero_optimization.stage=") + stage, "--set",
         "zero_optimization.stage3_param_persistence_threshold=0"});
    for (const char* format : {"safetensors", "gguf"}) {
      write(format, "out");
      files.push_back(read_bytes(folder_ / "out"));
    }
  }
  EXPECT_TRUE(files[0] == files[2]);
  EXPECT_TRUE(files[1] == files[3]);
}

TEST_F(ExportCompressed, ScalesThatFloat16HoldsAreSaidToBeExact) {
  train({"mlp", 4, 512, "symmetric", R"("fp16-scales")"});
  EXPECT_THAT(write("gguf", "w.gguf"),
              HasSubstr("All scales are values of float16: the file holds the very weights that were trained."));
}

TEST_F(ExportCompressed, GgufRefusesCodesThatItsBlocksDoNotHold) {
  train({"mlp", 3, 512});
  EXPECT_THAT(refused("gguf"),
              HasSubstr("parameter 'blocks.0.mlp.fc.weight': it has 3 bits, groups of 32, which no block of GGUF is. "
                        "Q4_0 holds 4 bits in groups of 32, which are 512 groups of this weight"));
  train({"mlp", 4, 256});
  EXPECT_THAT(refused("gguf"), HasSubstr("it has 4 bits, groups of 64, which no block of GGUF is."));
  train({"mlp", 4, 512, "asymmetric"});
  EXPECT_THAT(refused("gguf"), HasSubstr("asymmetric codes have zero points, which Q8_0 and Q4_0 lack."));
  train({"mlp", 8, 1}, 40);
  EXPECT_THAT(refused("gguf"), HasSubstr("its rows of 40 elements are no multiple of 32"));
}

TEST_F(ExportCompressed, WhatHasNoCodesIsRefused) {
  train({"attn.qkv", 8, 128});  // 192 rows of 64: groups of 96
  EXPECT_THAT(
      refused("safetensors"),
      HasSubstr("parameter 'blocks.0.attn.qkv.weight': its 128 groups of 96 elements end within its rows of 64, "
                "and no format holds such groups. What fits: as many groups as rows, 192,"));
  train({"mlp", 12, 1});
  EXPECT_THAT(refused("safetensors"),
              HasSubstr("its compression gives no codes of it, and files hold codes of 1 to 8"));
  train({"mlp", 8, 256, "asymmetric"});
  EXPECT_THAT(refused("hf"), HasSubstr("transformers opens no asymmetric codes of 8 bits in more than one group."));
  train({"mlp", 8, 1, "symmetric", "", 100});
  EXPECT_THAT(refused("hf"), HasSubstr("after 2 updates no compression of weights acts yet (schedule_offset)."));
  EXPECT_THAT(run({"export", "--checkpoint", "ckpt", "--compressed", "--to", "pt", "--out", "x"}, false).err,
              HasSubstr("--compressed goes to safetensors, hf or gguf; a pt file has no codes."));
}

TEST_F(ExportCompressed, ModelsThatTellNoFormatGoToSafetensorsAlone) {
  train({"", 8, 1}, 0, R"("mlp")");
  EXPECT_THAT(refused("hf"), HasSubstr("model 'mlp': does not say how such a file calls its weights (\"hf_linear\" in "
                                       "what it tells of itself). Use --to safetensors instead."));
  EXPECT_THAT(refused("gguf"), HasSubstr("(\"gguf\" in what it tells"));
  EXPECT_THAT(write("safetensors", "w.safetensors"), HasSubstr("8 bits, one group"));
}

TEST_F(ExportCompressed, RunsThatCompressNothingAreSaidToDoSo) {
  write_bytes(folder_ / "config.json", R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"},
    "capstan": {"model": {"type": "gpt", "params": {"layers": 1, "d": 32, "heads": 4, "seq": 32}}}})");
  run({"train", "--config", "config.json", "--data", "text.txt", "--steps", "1", "--save", "ckpt"});
  EXPECT_THAT(refused("safetensors"), HasSubstr("its run compressed no weights"));
  // GGUF takes values as well.
  EXPECT_THAT(run({"export", "--checkpoint", "ckpt", "--to", "gguf", "--dtype", "float16", "--out", "w.gguf"}).out,
              AllOf(HasSubstr("as it is, F16"), HasSubstr("as it is, F32")));
}

/// An installation of the same programs with models alone.
void install_models(const fs::path& folder) {
  const fs::path build = CAPSTAN_TEST_BUILD_DIR;
  for (const char* program : {"bin/capstan", "libexec/capstan-engine"}) {
    fs::create_directories((folder / program).parent_path());
    fs::copy_file(build / program, folder / program);
  }
  fs::create_directories(folder / "lib/capstan/plugins");
  fs::create_directory_symlink(build / "lib/capstan/plugins/models", folder / "lib/capstan/plugins/models");
  // Plugins are looked for beside the libraries themselves, where symbolic links lead to.
  for (const char* library : {"lib/libcapstan.so", "lib/libcapstan_config.so"}) {
    fs::copy_file(build / library, folder / library);
  }
}

TEST_F(ExportCompressed, AMissingPluginIsNamed) {
  train({"mlp", 8, 1});
  install_models(folder_ / "other");
  const std::vector<std::string> words = {path("other/bin/capstan"),
                                          "export",
                                          "--checkpoint",
                                          path("ckpt"),
                                          "--compressed",
                                          "--to",
                                          "safetensors",
                                          "--out",
                                          path("out")};
  EXPECT_THAT(run_process(words).err, HasSubstr("no installed compression carries out the section "
                                                "'compression_training.weight_quantization'; one comes with Capstan."));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(ExportCompressed, AFullDiskLeavesNothing) {
  train({"mlp", 8, 1});
  fs::create_directory(folder_ / "disk");
  const test::SmallDisk disk(folder_ / "disk", "64k");
  if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
  for (const char* format : {"safetensors", "gguf", "hf"}) {
    EXPECT_THAT(refused(format, std::string("disk/") + format), HasSubstr("No space left on device"));
    EXPECT_TRUE(fs::is_empty(folder_ / "disk")) << format;
  }
}

}  // namespace
}  // namespace capstan::cli
