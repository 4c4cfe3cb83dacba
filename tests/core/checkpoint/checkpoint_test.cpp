#include "core/checkpoint/checkpoint.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/checkpoint_index.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/sample_checkpoint.hpp"
#include "tests/core/checkpoint/small_disk.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::expect_equal;
using test::read_bytes;
using test::sample_checkpoint;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string fault_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "no fault";
}

TEST(Checkpoint, WhatIsWrittenIsReadAgain) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "global_step7", sample_checkpoint(7));

  expect_equal(read_checkpoint(folder.path(), "global_step7"), sample_checkpoint(7));
  EXPECT_EQ(latest_tag(folder.path()), "global_step7");
  EXPECT_EQ(read_bytes(folder / "latest"), "global_step7");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("global_step7", "latest"));
  EXPECT_THAT(names_in(folder / "global_step7"), ElementsAre("index.json", "rank_00000.safetensors", "state.json"));
}

TEST(Checkpoint, TheIndexNamesEveryTensor) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "t", sample_checkpoint(1));

  const Json index = Json::parse(read_bytes(folder / "t/index.json"));
  EXPECT_EQ(index.at("version").as_integer(), 1);
  const auto& tensors = index.at("tensors").as_array();
  ASSERT_EQ(tensors.size(), 6u);
  const Json& last = tensors[5];
  EXPECT_EQ(last.at("parameter"), Json(""));
  EXPECT_EQ(last.at("state"), Json("flat"));
  EXPECT_EQ(last.at("dtype"), Json("F64"));
  EXPECT_EQ(last.at("shape"), Json(Json::Array{10}));
  EXPECT_EQ(last.at("offset"), Json(4));
  EXPECT_EQ(last.at("numel"), Json(6));
  EXPECT_EQ(last.at("file"), Json("rank_00000.safetensors"));
  EXPECT_EQ(last.at("end").as_integer() - last.at("begin").as_integer(), 48);
}

TEST(Checkpoint, ATagMayBeWrittenAgain) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "best", sample_checkpoint(1));
  write_checkpoint(folder.path(), "best", sample_checkpoint(2));

  expect_equal(read_checkpoint(folder.path(), "best"), sample_checkpoint(2));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("best", "latest"));
}

/// The same contents, of which no value is in memory.
CheckpointContents elsewhere(CheckpointContents contents) {
  for (CheckpointTensor& tensor : contents.tensors) {
    tensor.read = [values = tensor.values.reshape({-1})](std::int64_t from, std::int64_t count) {
      return values.narrow(0, from, count);
    };
    tensor.values = values_elsewhere(tensor.values.sizes(), tensor.values.scalar_type());
  }
  return contents;
}

TEST(Checkpoint, OfValuesThatAreNotInMemoryIsTheSameFiles) {
  const TemporaryFolder memory, streamed;
  write_checkpoint(memory.path(), "t", sample_checkpoint(1));
  write_checkpoint(streamed.path(), "t", elsewhere(sample_checkpoint(1)));
  for (const std::string& name : names_in(memory / "t")) {
    EXPECT_EQ(read_bytes(streamed / "t" / name), read_bytes(memory / "t" / name)) << name;
  }
  expect_equal(read_checkpoint(streamed.path(), "t"), sample_checkpoint(1));
}

TEST(Checkpoint, AReaderThatFailsLeavesThePreviousCheckpoint) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "t", sample_checkpoint(1));
  CheckpointContents contents = elsewhere(sample_checkpoint(2));
  contents.tensors[1].read = [](std::int64_t, std::int64_t) -> at::Tensor { throw RuntimeFault("the store is gone"); };
  EXPECT_EQ(fault_of([&] { write_checkpoint(folder.path(), "t", contents); }), "the store is gone");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "t"));
  expect_equal(read_checkpoint(folder.path(), "t"), sample_checkpoint(1));
}

TEST(Checkpoint, FoldersAreCreatedAsNeeded) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "a/b", "t", sample_checkpoint(1));
  expect_equal(read_checkpoint(folder / "a/b", "t"), sample_checkpoint(1));
}

TEST(Checkpoint, TensorsThatAreNotContiguousAreSavedAsTheirElements) {
  const TemporaryFolder folder;
  CheckpointContents contents;
  const auto base = at::arange(12, at::kFloat).view({3, 4});
  contents.tensors = {{"w", "param", {4, 3}, 0, base.t()}};
  write_checkpoint(folder.path(), "t", contents);

  EXPECT_TRUE(at::equal(read_checkpoint(folder.path(), "t").tensors[0].values, base.t()));
}

TEST(Checkpoint, AFlippedBitInAnyByteIsFoundAndItsFileNamed) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "t", sample_checkpoint(3));
  for (const auto& name : names_in(folder / "t")) {
    const auto path = (folder / "t").string() + "/" + name;
    const std::string whole = read_bytes(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](std::size_t place, char byte) {
      file.seekp(static_cast<std::streamoff>(place)).put(byte).flush();
    };
    for (std::size_t i = 0; i < whole.size(); ++i) {
      put(i, static_cast<char>(whole[i] ^ 1 << i % 8));
      ASSERT_THAT(fault_of([&] { read_checkpoint(folder.path(), "t"); }), HasSubstr("checkpoint file '" + path + "': "))
          << "byte " << i;
      put(i, whole[i]);
    }
  }
  expect_equal(read_checkpoint(folder.path(), "t"), sample_checkpoint(3));
}

TEST(Checkpoint, AFileCutOffAnywhereIsFoundAndNamed) {
  const TemporaryFolder folder;
  for (const auto* name : {"index.json", "rank_00000.safetensors", "state.json"}) {
    write_checkpoint(folder.path(), "t", sample_checkpoint(3));
    const auto path = (folder / "t").string() + "/" + name;
    for (auto size = fs::file_size(path); size-- > 0;) {
      fs::resize_file(path, size);
      ASSERT_THAT(fault_of([&] { read_checkpoint(folder.path(), "t"); }), HasSubstr("checkpoint file '" + path + "': "))
          << size << " bytes";
    }
    fs::remove_all(folder / "t");
  }
}

TEST(Checkpoint, DamageIsToldWithTheTensorAndTheOtherCheckpoints) {
  const TemporaryFolder folder;
  for (int step : {5, 10, 20})
    write_checkpoint(folder.path(), "global_step" + std::to_string(step), sample_checkpoint(step));
  const auto where = (folder / "global_step20").string();
  const auto fault = [&] { return fault_of([&] { read_checkpoint(folder.path(), "global_step20"); }); };
  const std::string others = " Other checkpoints there: global_step5, global_step10.";

  std::string bytes = read_bytes(where + "/rank_00000.safetensors");
  bytes.back() ^= 1;
  folder.write("global_step20/rank_00000.safetensors", bytes);
  EXPECT_EQ(fault(), "checkpoint file '" + where +
                         "/rank_00000.safetensors': param of 'layer.bias' is damaged: it does "
                         "not match its checksum." +
                         others);
  folder.write("global_step20/rank_00000.safetensors", bytes + "x");
  EXPECT_EQ(fault(), "checkpoint file '" + where + "/rank_00000.safetensors': it has " +
                         std::to_string(bytes.size() + 1) + " bytes, " + std::to_string(bytes.size()) +
                         " were written: something was added." + others);
  fs::remove(where + "/rank_00000.safetensors");
  EXPECT_EQ(fault(), "checkpoint file '" + where + "/rank_00000.safetensors': it is missing." + others);
  std::string index = read_bytes(where + "/index.json");
  index[index.find("param")] = 'P';
  folder.write("global_step20/index.json", index);
  EXPECT_EQ(fault(),
            "checkpoint file '" + where + "/index.json': it is damaged: it does not match its own checksum." + others);
}

TEST(Checkpoint, AFileOfAnotherCheckpointIsFound) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "a", sample_checkpoint(1));
  write_checkpoint(folder.path(), "b", sample_checkpoint(2));
  fs::copy(folder / "a/rank_00000.safetensors", folder / "b/rank_00000.safetensors",
           fs::copy_options::overwrite_existing);

  EXPECT_THAT(fault_of([&] { read_checkpoint(folder.path(), "b"); }),
              HasSubstr("rank_00000.safetensors': param of 'layer.weight' is damaged"));
}

/// A checkpoint of two ranks' files, changed by `change` before its index is written with the right seal.
template <class Change>
void write_two_ranks(const TemporaryFolder& folder, const CheckpointContents& second, Change change) {
  write_checkpoint(folder.path(), "other", second);
  write_checkpoint(folder.path(), "t", sample_checkpoint(1));
  const auto index_of = [&](const char* tag) {
    return parse_index(read_bytes(folder / tag / "index.json"), "index of a test");
  };
  CheckpointIndex index = index_of("t");
  IndexedFile file = index_of("other").files.front();
  file.name = "rank_00001.safetensors";
  index.files.push_back(file);
  fs::rename(folder / "other/rank_00000.safetensors", folder / "t/rank_00001.safetensors");
  fs::remove_all(folder / "other");
  change(index);
  folder.write("t/index.json", index_text(index));
}

TEST(Checkpoint, RanksMayHoldFilesThatAreAlike) {
  const TemporaryFolder folder;
  write_two_ranks(folder, sample_checkpoint(1), [](CheckpointIndex&) {});

  expect_equal(read_checkpoint(folder.path(), "t"), sample_checkpoint(1));
}

TEST(Checkpoint, AFileUnderAnotherRanksNameIsTold) {
  const TemporaryFolder folder;
  CheckpointContents second = sample_checkpoint(1);
  second.tensors[0].parameter = "later.weight";  // as long as the first rank's: only the headers' bytes differ
  write_two_ranks(folder, second, [](CheckpointIndex&) {});
  fs::rename(folder / "t/rank_00000.safetensors", folder / "t/aside");
  fs::rename(folder / "t/rank_00001.safetensors", folder / "t/rank_00000.safetensors");
  fs::rename(folder / "t/aside", folder / "t/rank_00001.safetensors");

  EXPECT_EQ(fault_of([&] { read_checkpoint(folder.path(), "t"); }),
            "checkpoint file '" + (folder / "t").string() +
                "/rank_00000.safetensors': it is 'rank_00001.safetensors' under another name.");
}

TEST(Checkpoint, AnIndexCannotNameAFileOutsideOfItsFolder) {
  for (const std::string name : {"../../../../etc/passwd", "/etc/passwd", "..", ".", ""}) {
    const TemporaryFolder folder;
    const std::string where = "checkpoint file '" + (folder / "t/index.json").string() + "', ";
    const std::string defect = " '" + name + "' is not the name of a file in the checkpoint's folder.";
    write_two_ranks(folder, sample_checkpoint(1), [&](CheckpointIndex& index) { index.files[1].name = name; });
    EXPECT_EQ(fault_of([&] { read_checkpoint(folder.path(), "t"); }), where + "files[1]: name" + defect);
  }
}

TEST(Checkpoint, ATensorOfTheIndexCannotLieOutsideOfItsFolder) {
  const TemporaryFolder folder;
  write_two_ranks(folder, sample_checkpoint(1),
                  [](CheckpointIndex& index) { index.tensors[2].file = "../rank_00000.safetensors"; });
  EXPECT_EQ(
      fault_of([&] { read_checkpoint(folder.path(), "t"); }),
      "checkpoint file '" + (folder / "t/index.json").string() +
          "', tensors[2]: file '../rank_00000.safetensors' is not the name of a file in the checkpoint's folder.");
}

TEST(Checkpoint, WhatIsNotThereIsTold) {
  const TemporaryFolder folder;
  const auto dir = folder.path().string();
  EXPECT_EQ(fault_of([&] { latest_tag(folder / "none"); }),
            "checkpoints in '" + dir + "/none': there is no such folder.");
  EXPECT_EQ(fault_of([&] { latest_tag(dir); }),
            "checkpoints in '" + dir + "': there is no file 'latest' to tell which.");
  folder.write("latest", "../other");
  EXPECT_EQ(fault_of([&] { latest_tag(dir); }),
            "checkpoints in '" + dir + "': the file 'latest' does not hold a checkpoint's name.");
  write_checkpoint(dir, "global_step1", sample_checkpoint(1));
  EXPECT_EQ(fault_of([&] { read_checkpoint(dir, "global_step2"); }),
            "checkpoint '" + dir + "/global_step2': there is no such folder. Checkpoints there: global_step1.");
  folder.write("global_step2/notes.txt", "");
  EXPECT_EQ(fault_of([&] { read_checkpoint(dir, "global_step2"); }),
            "checkpoint '" + dir +
                "/global_step2': it has no file 'index.json', so it is not a checkpoint. Checkpoints "
                "there: global_step1.");
  folder.write("global_step2/mp_rank_00_model_states.pt", "");
  EXPECT_EQ(fault_of([&] { read_checkpoint(dir, "global_step2"); }),
            "checkpoint file '" + dir +
                "/global_step2/mp_rank_00_model_states.pt': it is empty: it was cut off. Other checkpoints there: "
                "global_step1.");
}

TEST(Checkpoint, ATagThatIsNoNameOfAFolderIsRefused) {
  const TemporaryFolder folder;
  for (const std::string tag : {"", ".", "..", "a/b", ".hidden", "latest", "two\nlines"}) {
    EXPECT_EQ(fault_of([&] { write_checkpoint(folder.path(), tag, sample_checkpoint(1)); }),
              "checkpoint tag '" + tag +
                  "': it names a folder, so it must not be empty, hold '/' or a line break, begin "
                  "with '.', be longer than 200 bytes or be 'latest'.");
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(Checkpoint, AFolderThatIsNotOursIsNotReplaced) {
  const TemporaryFolder folder;
  folder.write("notes/keep.txt", "text");

  EXPECT_EQ(fault_of([&] { write_checkpoint(folder.path(), "notes", sample_checkpoint(1)); }),
            "checkpoint '" + (folder / "notes").string() +
                "': something is there already that is not a checkpoint of this "
                "program. Choose another tag or folder, or move it away.");
  EXPECT_EQ(read_bytes(folder / "notes/keep.txt"), "text");
}

TEST(Checkpoint, ASecondSaveIntoTheFolderAtTheSameTimeIsRefused) {
  const TemporaryFolder folder;
  const int other = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(other, LOCK_EX), 0);

  EXPECT_EQ(fault_of([&] { write_checkpoint(folder.path(), "t", sample_checkpoint(1)); }),
            "checkpoints in '" + folder.path().string() +
                "': another process is saving there at this moment. Give each "
                "run a folder of its own.");
  close(other);
  write_checkpoint(folder.path(), "t", sample_checkpoint(1));
}

TEST(Checkpoint, WhatADeadSaveLeftIsCleanedUp) {
  const TemporaryFolder folder;
  folder.write(".global_step3.partial-12345/rank_00000.safetensors", "half");
  folder.write(".latest.partial-12345", "global_step3");
  folder.write(".partial-notes/keep.txt", "text");
  write_checkpoint(folder.path(), "global_step4", sample_checkpoint(4));

  EXPECT_THAT(names_in(folder.path()), ElementsAre(".partial-notes", "global_step4", "latest"));
}

TEST(Checkpoint, ACheckpointWhoseReplacementDiedHalfWayIsStillThere) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "best", sample_checkpoint(1));
  fs::rename(folder / "best", folder / ".best.replaced");

  expect_equal(read_checkpoint(folder.path(), latest_tag(folder.path())), sample_checkpoint(1));
  write_checkpoint(folder.path(), "other", sample_checkpoint(2));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("best", "latest", "other"));
}

TEST(Checkpoint, AFileThatGrowsTooLargeLeavesThePreviousCheckpoint) {
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), "t", sample_checkpoint(1));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100'000, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const auto fault = fault_of([&] { write_checkpoint(folder.path(), "u", sample_checkpoint(2, 100'000)); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);

  EXPECT_EQ(fault, "'" + (folder / (".u.partial-" + std::to_string(getpid()))).string() +
                       "/rank_00000.safetensors': writing failed at byte 100000: File too large.");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "t"));
  expect_equal(read_checkpoint(folder.path(), latest_tag(folder.path())), sample_checkpoint(1));
}

TEST(Checkpoint, AFullDiskLeavesThePreviousCheckpoint) {
  const TemporaryFolder folder;
  const test::SmallDisk disk(folder.path(), "1m");
  if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
  write_checkpoint(folder.path(), "t", sample_checkpoint(1));
  const auto fault = fault_of([&] { write_checkpoint(folder.path(), "t", sample_checkpoint(2, 100'000)); });
  const auto names = names_in(folder.path());
  expect_equal(read_checkpoint(folder.path(), latest_tag(folder.path())), sample_checkpoint(1));
  write_checkpoint(folder.path(), "u", sample_checkpoint(3));
  expect_equal(read_checkpoint(folder.path(), latest_tag(folder.path())), sample_checkpoint(3));

  EXPECT_THAT(fault, AllOf(HasSubstr("/rank_00000.safetensors': writing failed at byte "),
                           HasSubstr(": No space left on device. Free space there or save elsewhere.")));
  EXPECT_THAT(names, ElementsAre("latest", "t"));
}

TEST(PruneCheckpoints, TheNewestStayAndOthersAreNotTouched) {
  const TemporaryFolder folder;
  for (int step : {100, 20, 3})
    write_checkpoint(folder.path(), "global_step" + std::to_string(step), sample_checkpoint(step));
  write_checkpoint(folder.path(), "best", sample_checkpoint(1));
  write_checkpoint(folder.path(), "global_step200", sample_checkpoint(200));
  folder.write("global_step1/notes.txt", "not a checkpoint");
  folder.write("global_step2x/index.json", "not a step");

  const std::set<std::string> own = {"global_step100", "global_step20", "global_step3", "global_step200",
                                     "best",           "global_step1",  "global_step2x"};
  prune_checkpoints(folder.path(), 0, own);
  EXPECT_EQ(names_in(folder.path()).size(), 8u);
  prune_checkpoints(folder.path(), 2, own);
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("best", "global_step1", "global_step100", "global_step200", "global_step2x", "latest"));
}

TEST(PruneCheckpoints, TheBestStays) {
  const TemporaryFolder folder;
  EXPECT_EQ(best_tag(folder.path()), "");
  for (int step : {1, 2, 3, 4})
    write_checkpoint(folder.path(), "global_step" + std::to_string(step), sample_checkpoint(step));
  EXPECT_EQ(tag_named(folder.path(), "best"), "best") << "nothing tells another one";
  note_best(folder.path(), "global_step1");
  note_best(folder.path(), "global_step2");
  EXPECT_EQ(best_tag(folder.path()), "global_step2");
  EXPECT_EQ(tag_named(folder.path(), "best"), "global_step2");
  EXPECT_EQ(tag_named(folder.path(), ""), "");
  EXPECT_EQ(tag_named(folder.path(), "global_step3"), "global_step3");

  prune_checkpoints(folder.path(), 1, {"global_step1", "global_step2", "global_step3", "global_step4"});

  EXPECT_THAT(names_in(folder.path()), ElementsAre("best", "global_step2", "global_step4", "latest"));
  folder.write("best", "a/b");
  EXPECT_EQ(fault_of([&] { best_tag(folder.path()); }),
            "checkpoints in '" + folder.path().string() +
                "': the file 'best' does not hold a checkpoint's name. Checkpoints there: global_step2, global_step4.");
}

TEST(PruneCheckpoints, OthersThanTheOwnAreNeitherCountedNorTouched) {
  const TemporaryFolder folder;
  for (int step : {1, 2, 3, 50, 60})
    write_checkpoint(folder.path(), "global_step" + std::to_string(step), sample_checkpoint(step));

  prune_checkpoints(folder.path(), 2, {"global_step1", "global_step2", "global_step3", "global_step4"});

  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("global_step2", "global_step3", "global_step50", "global_step60", "latest"));
}

TEST(CheckpointThere, IsTheLatestOrTheFurthestWhoeverWroteIt) {
  const TemporaryFolder folder;
  EXPECT_EQ(checkpoint_there(folder.path()), "");
  EXPECT_EQ(checkpoint_there(folder.path() / "nowhere"), "");
  folder.write("notes.txt", "mine");
  fs::create_directories(folder.path() / "global_step7");
  EXPECT_EQ(checkpoint_there(folder.path()), "") << "an empty folder";
  folder.write("global_step8/mp_rank_00_model_states.pt", "");
  EXPECT_EQ(checkpoint_there(folder.path()), "global_step8");
  folder.write(".global_step9.partial-12/index.json", "");
  EXPECT_EQ(checkpoint_there(folder.path()), "global_step8") << "a save that was cut off";
  folder.write(".global_step10.replaced/index.json", "");
  EXPECT_EQ(checkpoint_there(folder.path()), "global_step10") << "a replacement that was cut off";
  write_checkpoint(folder.path(), "best", sample_checkpoint(1));
  EXPECT_EQ(checkpoint_there(folder.path()), "best");
  folder.write("latest", "../elsewhere");
  EXPECT_EQ(checkpoint_there(folder.path()), "latest");
}

TEST(PruneCheckpoints, TheLatestStaysEvenIfItIsTheOldest) {
  const TemporaryFolder folder;
  for (int step : {20, 30, 10})
    write_checkpoint(folder.path(), "global_step" + std::to_string(step), sample_checkpoint(step));

  prune_checkpoints(folder.path(), 1, {"global_step10", "global_step20", "global_step30"});

  EXPECT_THAT(names_in(folder.path()), ElementsAre("global_step10", "latest"));
  expect_equal(read_checkpoint(folder.path(), latest_tag(folder.path())), sample_checkpoint(10));
}

}  // namespace
}  // namespace capstan
