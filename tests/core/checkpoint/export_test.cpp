#include "core/checkpoint/export.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <map>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/pt_export.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/support/data_limit.hpp"
#include "tests/support/readers.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const char* const kPython = CAPSTAN_TEST_SOURCE_DIR "/.venv/bin/python";
const char* const kReader = CAPSTAN_TEST_SOURCE_DIR "/tests/core/checkpoint/pt_reader.py";

/// Both readers of pt_reader.py: its own, which follows the rules of torch.load(weights_only=True), and that function
/// itself, which needs more Python packages than the build does.
class ExportPt : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!fs::exists(kPython)) GTEST_SKIP() << kPython << " is not there; scripts/setup makes it";
    if (GetParam() == std::string("torch")) python_ = test::reader_python();
    if (python_.empty()) GTEST_SKIP() << test::kNoReaders;
  }

  /// Runs Python lines that find the file's content as `d`. Empty when all held.
  std::string complaint(const fs::path& file, const std::string& lines) const {
    const auto script = folder_.write("check.py", lines), out = (folder_ / "out.txt").string();
    const std::string command = python_ + " -W ignore " + kReader + " " + GetParam() + " " + file.string() + " " +
                                script + " >" + out + " 2>&1";
    return system(command.c_str()) == 0 ? "" : test::read_bytes(out) + "(failed)";
  }

  TemporaryFolder folder_;
  std::string python_ = kPython;
};

INSTANTIATE_TEST_SUITE_P(Readers, ExportPt, ::testing::Values("own", "torch"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ExportPt, PythonReadsNamesTypesAndValues) {
  export_pt(folder_ / "w.pt", {{"b.weight", at::arange(6, at::kFloat).view({2, 3})},
                               {"a.weight", at::arange(3, at::kBFloat16)},
                               {"steps", at::full({}, 7, at::kLong)},
                               {"none", at::empty({0, 2}, at::kFloat)}});

  EXPECT_EQ(complaint(folder_ / "w.pt", R"(
assert list(d) == ['b.weight', 'a.weight', 'steps', 'none'], list(d)
assert d['b.weight'].dtype == 'float32' and d['b.weight'].values == [[0., 1., 2.], [3., 4., 5.]]
assert d['a.weight'].dtype == 'bfloat16' and d['a.weight'].values == [0., 1., 2.]
assert d['steps'].dtype == 'int64' and d['steps'].shape == () and d['steps'].values == 7
assert d['none'].shape == (0, 2)
assert not any(t.requires_grad for t in d.values())
)"),
            "");
}

TEST_P(ExportPt, TiedWeightsAreWrittenOnceAndViewsByThemselves) {
  const auto flat = at::arange(1'000'000, at::kFloat).requires_grad_(true);
  const auto tied = flat.detach().narrow(0, 0, 200'000);
  export_pt(folder_ / "w.pt", {{"embedding", tied},
                               {"head", tied},
                               {"slice", flat.narrow(0, 500'000, 10)},
                               {"transposed", flat.narrow(0, 10, 6).view({2, 3}).t()},
                               {"same place, other shape", tied.view({2, 100'000})}});

  EXPECT_EQ(complaint(folder_ / "w.pt", R"(
assert d['embedding'].values == list(range(200000))
assert d['head'].storage == d['embedding'].storage
assert d['slice'].values == list(range(500000, 500010))
assert d['slice'].storage_bytes == 40
assert d['transposed'].values == [[10., 13.], [11., 14.], [12., 15.]]
assert d['same place, other shape'].shape == (2, 100000)
assert d['same place, other shape'].storage != d['embedding'].storage
assert not any(t.requires_grad for t in d.values())
)"),
            "");
  EXPECT_LT(fs::file_size(folder_ / "w.pt"), 2 * 800'000u + 10'000u);
}

TEST_P(ExportPt, OfACheckpointConvertsFloatingPointOnly) {
  CheckpointContents contents;
  contents.tensors = {{"w", "param", {3, 4}, 0, at::arange(12, at::kFloat)},
                      {"b", "param", {2}, 0, at::full({2}, 1.00390625, at::kFloat)},
                      {"seen", "buffer", {}, 0, at::full({}, 3, at::kLong)}};
  write_checkpoint(folder_.path(), "t", contents);
  export_checkpoint(folder_.path(), "t", ExportFormat::kPt, folder_ / "model.pt", at::kBFloat16);

  EXPECT_EQ(complaint(folder_ / "model.pt", R"(
assert sorted(d) == ['b', 'seen', 'w'], list(d)
assert d['w'].dtype == 'bfloat16' and d['w'].values == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
assert d['b'].values == [1.0, 1.0]  # 1 + 2^-8 lies between two bf16 numbers and goes to the even one
assert d['seen'].dtype == 'int64'
)"),
            "");
}

CheckpointContents in_parts() {
  const auto whole = at::arange(12, at::kFloat);
  CheckpointContents contents;
  contents.tensors = {{"w", "param", {3, 4}, 5, whole.narrow(0, 5, 7)},
                      {"b", "param", {2}, 0, at::full({2}, 1.00390625, at::kFloat)},
                      {"w", "param", {3, 4}, 0, whole.narrow(0, 0, 5)},
                      {"w", "exp_avg", {3, 4}, 0, whole},
                      {"seen", "buffer", {}, 0, at::full({}, 3, at::kLong)}};
  return contents;
}

TEST_P(ExportPt, OfPartsIsPutTogether) {
  write_checkpoint(folder_.path(), "t", in_parts());
  export_checkpoint(folder_.path(), "t", ExportFormat::kPt, folder_ / "model.pt");
  EXPECT_EQ(complaint(folder_ / "model.pt", R"(
assert d['w'].values == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
assert d['w'].storage != d['b'].storage and d['w'].storage_bytes == 48
assert d['b'].values == [1.00390625, 1.00390625] and d['seen'].values == 3
)"),
            "");
}

TEST_P(ExportPt, HoldsATensorUnderAllOfItsNames) {
  CheckpointContents contents = in_parts();
  contents.state["tied"] = Json::parse(R"({"head": "w", "again": "seen", "gone": "nothing", "b": "w"})");
  write_checkpoint(folder_.path(), "t", contents);
  export_checkpoint(folder_.path(), "t", ExportFormat::kPt, folder_ / "model.pt");
  EXPECT_EQ(complaint(folder_ / "model.pt", R"(
assert sorted(d) == ['again', 'b', 'head', 'seen', 'w'], list(d)
assert d['head'].storage == d['w'].storage and d['head'].values == d['w'].values
assert d['again'].values == 3 and d['b'].values == [1.00390625, 1.00390625]
)"),
            "");
  export_checkpoint(folder_.path(), "t", ExportFormat::kSafetensors, folder_ / "model.safetensors");
  EXPECT_EQ(read_safetensors(folder_ / "model.safetensors").size(), 3u);
}

/// Files of this process take so many bytes at most.
class FileLimit {
 public:
  explicit FileLimit(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

/// Whatever is being written when there is no more room: the pickle, values, or the directory at the end.
TEST(ExportPtErrors, AFileWithoutRoomIsToldAndNothingStays) {
  const TemporaryFolder folder;
  CheckpointContents contents = in_parts();
  contents.tensors.push_back({"large", "param", {900'000}, 0, at::arange(900'000, at::kFloat)});
  write_checkpoint(folder.path(), "t", contents);
  fs::create_directory(folder / "out");
  const fs::path file = folder / "out/w.pt";
  const auto write = [&] { export_checkpoint(folder.path(), "t", ExportFormat::kPt, file); };
  write();
  const std::uint64_t whole = fs::file_size(file);
  fs::remove(file);
  for (const std::uint64_t room : {std::uint64_t{0}, std::uint64_t{100}, whole / 2, whole - 1}) {
    const FileLimit limit(room);
    EXPECT_THAT(write, ThrowsMessage<RuntimeFault>(
                           HasSubstr("writing failed at byte " + std::to_string(room) + ": File too large.")));
    EXPECT_TRUE(fs::is_empty(folder / "out")) << room;
  }
}

TEST(ExportPtErrors, AFileThatCannotBeCreatedIsNamed) {
  EXPECT_THAT(([] {
                export_pt("/proc/no/w.pt", {{"a", at::arange(3)}});
              }),
              ThrowsMessage<RuntimeFault>(HasSubstr("cannot be created: No such file or directory.")));
}

TEST(ExportCheckpoint, PartsBecomeWholeParametersInSafetensors) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "t", in_parts());
  export_checkpoint(folder.path(), "t", ExportFormat::kSafetensors, folder / "model.safetensors");

  std::map<std::string, at::Tensor> read;
  for (const auto& entry : read_safetensors(folder / "model.safetensors")) read[entry.name] = entry.values;
  ASSERT_EQ(read.size(), 3u);
  EXPECT_TRUE(at::equal(read.at("w"), at::arange(12, at::kFloat).view({3, 4})));
  EXPECT_TRUE(at::equal(read.at("b"), at::full({2}, 1.00390625, at::kFloat)));
  EXPECT_TRUE(at::equal(read.at("seen"), at::full({}, 3, at::kLong)));
}

/// Ten matrices of 8 MB, each in two parts, saved without having been in memory together.
void write_large_checkpoint(const fs::path& dir) {
  CheckpointContents contents;
  for (int i = 0; i < 10; ++i) {
    for (const std::int64_t offset : {0, 500'000}) {
      const std::int64_t numel = offset == 0 ? 500'000 : 1'500'000;
      const auto read = [=](std::int64_t from, std::int64_t count) {
        return at::arange(offset + from, offset + from + count, at::kFloat).add_(i);
      };
      contents.tensors.push_back(
          {"w" + std::to_string(i), "param", {2'000, 1'000}, offset, values_elsewhere({numel}, at::kFloat), read});
    }
  }
  write_checkpoint(dir, "t", contents);
}

at::Tensor large_matrix(int i) { return at::arange(2'000'000, at::kFloat).add_(i).view({2'000, 1'000}); }

TEST(ExportCheckpoint, HoldsOneTensorInMemoryAtATime) {
  const TemporaryFolder folder;
  write_large_checkpoint(folder.path());
  std::string places;
  for (int i = 0; i < 10; ++i) {
    const std::string name = std::to_string(i);
    places +=
        (i > 0 ? "," : "") + (R"({"parameter": "w)" + name + R"(", "name": "h)" + name + R"(", "transposed": true})");
  }
  const Json description = Json::parse(R"({"hf": {"config": {}, "tensors": [)" + places + "]}}");
  const auto format_of = [&](const Json&) { return hf_format(description, "net"); };
  {
    const test::DataLimit limit(40'000'000);
    export_checkpoint(folder.path(), "t", ExportFormat::kSafetensors, folder / "all");
    export_checkpoint(folder.path(), "t", ExportFormat::kSafetensors, folder / "half", at::kBFloat16);
    export_checkpoint(folder.path(), "t", ExportFormat::kPt, folder / "all.pt");
    export_hf(folder.path(), "t", format_of, folder / "hf");
    EXPECT_EQ(read_hf_folder(folder / "hf", format_of({})).size(), 10u);
  }
  const auto all = read_safetensors(folder / "all"), half = read_safetensors(folder / "half");
  const auto turned = read_safetensors(folder / "hf" / "model.safetensors");
  const auto back = read_hf_folder(folder / "hf", format_of({}));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(at::equal(all[i].values, large_matrix(i))) << i;
    EXPECT_TRUE(at::equal(half[i].values, large_matrix(i).to(at::kBFloat16))) << i;
    EXPECT_TRUE(at::equal(turned[i].values, large_matrix(i).t())) << i;
    EXPECT_TRUE(at::equal(back[i].values, large_matrix(i))) << i;
  }
  EXPECT_GT(fs::file_size(folder / "all.pt"), 80'000'000u);
}

/// A checkpoint that two processes saved at the stage.
CheckpointContents saved_at(int stage, bool gathers) {
  CheckpointContents contents;
  contents.tensors = {{"w", "param", {2}, 0, at::full({2}, 0.5, at::kFloat)}};
  contents.state["world_size"] = 2;
  contents.state["config"]["zero_optimization"]["stage"] = stage;
  contents.state["config"]["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = gathers;
  return contents;
}

TEST(ExportOf16Bits, NeedsTheGatherKeyAtStage3) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "without", saved_at(3, false));
  write_checkpoint(folder.path(), "with", saved_at(3, true));
  write_checkpoint(folder.path(), "stage2", saved_at(2, false));
  const auto to = [&](const char* tag, std::optional<at::ScalarType> dtype) {
    export_checkpoint(folder.path(), tag, ExportFormat::kSafetensors, folder / "model.safetensors", dtype);
  };
  EXPECT_THAT([&] { to("without", at::kBFloat16); },
              ThrowsMessage<RuntimeFault>(
                  "checkpoint '" + (folder / "without").string() +
                  "': it was trained at ZeRO stage 3, whose 16-bit weights are exported only where "
                  "zero_optimization.stage3_gather_16bit_weights_on_model_save is true. Train on with that key, or "
                  "export in float32."));
  EXPECT_THROW(to("without", at::kHalf), RuntimeFault);
  for (const auto& dtype : {std::optional<at::ScalarType>(), std::optional(at::kFloat)}) to("without", dtype);
  to("with", at::kBFloat16);
  to("stage2", at::kBFloat16);
}

TEST(ExportCheckpoint, ACheckpointWithoutWeightsIsRefused) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "t", {});
  EXPECT_THAT(
      [&] { export_checkpoint(folder.path(), "t", ExportFormat::kPt, folder / "x"); },
      ThrowsMessage<RuntimeFault>("checkpoint '" + (folder / "t").string() + "': it holds no weights to export."));
}

}  // namespace
}  // namespace capstan
