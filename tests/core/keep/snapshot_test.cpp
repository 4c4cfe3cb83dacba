// Snapshots of engines: what is loaded from one is what a checkpoint of the same instant holds, in whatever world, and
// training goes on beside it as it does without.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/fill.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/small_disk.hpp"
#include "tests/core/keep/snapshot_worlds.hpp"

namespace capstan {
namespace {

using test::in_worlds;
using test::InWorld;
using test::MixedRun;
using test::shared;
using test::TemporaryFolder;
using test::TogetherRun;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Case {
  const char* name;
  std::string zero;  // members of zero_optimization
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  std::string more = "";
  bool synchronizes = false;  // a save makes its ranks equal, from which training goes on otherwise
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

std::string config_of(const Case& given, int ranks, const std::string& folder) {
  std::string text = R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
                     R"(, "steps_per_print": null, "optimizer": )" + given.optimizer + R"(, "zero_optimization": {)" +
                     given.zero + "}" + given.more + "}";
  for (std::size_t at; (at = text.find("FOLDER")) != std::string::npos;) text.replace(at, 6, folder + "/store");
  return text;
}

/// All that a checkpoint of the engine's state would hold, by name; of parts the whole.
std::map<std::string, std::string> all_of(MixedRun& run, const std::string& dir) {
  run.engine.save_checkpoint(dir, "compared");
  const CheckpointContents contents = read_checkpoint(dir, "compared");
  std::map<std::string, std::string> values;
  std::map<std::pair<std::string, std::int64_t>, std::string> parts;
  for (const CheckpointTensor& tensor : contents.tensors) {
    const at::Tensor flat = tensor.values.contiguous();
    parts[{tensor.state + "/" + tensor.parameter, tensor.offset}] =
        std::string(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  }
  for (const auto& [key, bytes] : parts) values[key.first] += bytes;
  for (const auto& [key, value] : contents.state.as_object()) {
    if (key != "config") values["state." + key] = value.dump();
  }
  return values;
}

void expect_same(const std::map<std::string, std::string>& found, const std::map<std::string, std::string>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, bytes] : expected) {
    const auto other = found.find(name);
    ASSERT_NE(other, found.end()) << name;
    EXPECT_TRUE(other->second == bytes) << name;
  }
}

Json client_state() {
  Json state = Json::object();
  state["epoch"] = 7;
  return state;
}

const Case kCases[] = {
    {"Stage0", R"("stage": 0)"},
    {"Stage1", R"("stage": 1)"},
    {"Stage2Overlapped", R"("stage": 2, "overlap_comm": true)"},
    {"Stage3", R"("stage": 3, "stage3_param_persistence_threshold": 10)"},
    {"Fp16", R"("stage": 2)", R"({"type": "Adam", "params": {"lr": 0.01}})",
     R"(, "fp16": {"enabled": true, "initial_scale_power": 8})"},
    {"Bf16Quantised", R"("stage": 3, "zero_quantized_weights": true, "zero_quantized_gradients": true)",
     R"({"type": "AdamW", "params": {"lr": 0.01}})", R"(, "bf16": {"enabled": true})"},
    {"Lamb", R"("stage": 1)", R"({"type": "Lamb", "params": {"lr": 0.01}})",
     R"(, "zero_allow_untested_optimizer": true)"},
    {"Momentum", R"("stage": 0)", R"({"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}})",
     R"(, "zero_allow_untested_optimizer": true)"},
    {"NvmeStates", R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "FOLDER"})"},
    {"NvmeAll",
     R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "FOLDER"},
        "offload_param": {"device": "nvme", "nvme_path": "FOLDER"})"},
};

class SnapshotCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Snapshot, SnapshotCase, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

/// What is found, held against the checkpoint, and against what training on from there gives.
void expect_snapshot_is_checkpoint(const Case& given, std::shared_ptr<Communicator> ranks, const std::string& folder,
                                   std::int64_t member) {
  const int size = ranks->size();
  const std::string config = config_of(given, size, folder),
                    own = folder + "/" + std::to_string(member - ranks->rank());
  TogetherRun run(config, ranks), checked(config, ranks);
  SnapshotFolder snapshots(folder + "/snapshots", member, 2);
  const auto found = run.engine.load_snapshot(snapshots);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, client_state());
  EXPECT_EQ(run.engine.progress().global_steps, 4);
  checked.engine.load_checkpoint(folder + "/saved");
  expect_same(all_of(run, own + "a"), all_of(checked, own + "b"));
  EXPECT_EQ(run.steps(2), checked.steps(2));
  EXPECT_TRUE(at::equal(run.values(), checked.values()));
}

/// Two ranks make a snapshot after step 3 and one after step 4, and save a checkpoint of step 4. Then they go on from
/// it, together and alone.
InWorld writers(const Case& given) {
  return {2, [=](Communicator& ranks, const std::string& folder) {
            std::filesystem::create_directories(folder + "/store");
            {
              SnapshotFolder snapshots(folder + "/snapshots", 10 + ranks.rank(), 1);
              TogetherRun plain(config_of(given, 2, folder), shared(ranks)),
                  run(config_of(given, 2, folder), shared(ranks));
              const auto snapshot = [&](const Json& state) {
                run.engine.begin_snapshot(snapshots, state);
                if (given.synchronizes) plain.engine.save_checkpoint(folder + "/plain");
              };
              EXPECT_EQ(run.steps(3), plain.steps(3));
              snapshot(Json::object());
              EXPECT_EQ(run.steps(1), plain.steps(1));
              snapshot(client_state());
              run.engine.save_checkpoint(folder + "/saved");
              // Beside the copy training goes on, to the same numbers.
              EXPECT_EQ(run.steps(2), plain.steps(2));
              EXPECT_TRUE(at::equal(run.values(), plain.values()));
              EXPECT_TRUE(run.engine.finish_snapshot());
            }
            expect_snapshot_is_checkpoint(given, shared(ranks), folder, 20 + ranks.rank());
            if (ranks.rank() == 0) expect_snapshot_is_checkpoint(given, Communicator::alone(), folder, 30);
            ranks.all_gather_text("test: end", "");
          }};
}

/// Another world goes on from there.
InWorld readers(int count, const Case& given) {
  return {count, [=](Communicator& ranks, const std::string& folder) {
            expect_snapshot_is_checkpoint(given, shared(ranks), folder, 40 + ranks.rank());
          }};
}

TEST_P(SnapshotCase, IsWhatACheckpointOfTheInstantHoldsInItsWorldAndInOthers) {
  const Case& given = GetParam();
  in_worlds({writers(given), readers(3, given)});
}

class OneBitSnapshot : public testing::TestWithParam<const char*> {};

TEST_P(OneBitSnapshot, GoesOnInItsWorldAndStartsAnewWhatBelongsToEachRankInOthers) {
  in_worlds({writers({"", R"("stage": 0)", GetParam(), "", true})});
}

INSTANTIATE_TEST_SUITE_P(
    Snapshot, OneBitSnapshot,
    testing::Values(
        R"({"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 2}})",
        R"({"type": "ZeroOneAdam", "params": {"lr": 0.01, "var_freeze_step": 2, "local_step_clipper": 4}})"),
    [](const auto& info) { return info.index == 0 ? "OneBitAdam" : "ZeroOneAdam"; });

TEST(Snapshot, GoesFromAnyStageToAnyOther) {
  const Case stage0{"", R"("stage": 0)"}, stage2{"", R"("stage": 2)"}, stage3{"", R"("stage": 3)"};
  in_worlds({writers(stage3), readers(3, stage0), readers(2, stage2)});
}

/// Numbers that forward draws, and a buffer that it changes, are those of the instant.
TEST(Snapshot, HasWhatTheNextForwardChangesAsItWasBefore) {
  const TemporaryFolder place;
  const Case given{"", R"("stage": 0)"};
  SnapshotFolder snapshots(place.path(), 0, 1);
  MixedRun run(config_of(given, 1, ""), Communicator::alone());
  run.model.noisy = true;
  run.steps(2);
  run.engine.begin_snapshot(snapshots);
  const std::vector<double> losses = run.steps(3);
  ASSERT_TRUE(run.engine.load_snapshot(snapshots).has_value());
  EXPECT_EQ(run.engine.progress().global_steps, 2);
  EXPECT_EQ(run.steps(3), losses);
}

TEST(Snapshot, HasValuesFromBeforeAGatherThatWrites) {
  const TemporaryFolder place;
  SnapshotFolder snapshots(place.path(), 0, 1);
  MixedRun run(config_of({"", R"("stage": 0)"}, 1, ""), Communicator::alone());
  run.steps(1);
  const at::Tensor before = run.values().clone();
  run.engine.begin_snapshot(snapshots);
  {
    GatherScope scope = run.engine.gather({}, 0);
    at::NoGradGuard no_grad;
    for (const NamedTensor& parameter : run.model.parameters) {
      if (parameter.tensor.requires_grad()) parameter.tensor.data().fill_(3);
    }
    scope.close();
  }
  ASSERT_TRUE(run.engine.load_snapshot(snapshots).has_value());
  EXPECT_TRUE(at::equal(run.values(), before));
}

TEST(Snapshot, IsRefusedInTheMiddleOfAStepAndMadeOnceForEach) {
  const TemporaryFolder place;
  SnapshotFolder snapshots(place.path(), 0, 1);
  MixedRun run(config_of({"", R"("stage": 0)", R"({"type": "AdamW", "params": {"lr": 0.01}})"}, 1, ""),
               Communicator::alone());
  EXPECT_FALSE(run.engine.load_snapshot(snapshots).has_value());
  run.steps(1);
  for (int i = 0; i < 3; ++i) run.engine.begin_snapshot(snapshots);
  EXPECT_TRUE(run.engine.finish_snapshot());
  EXPECT_EQ(snapshots.find().segments.size(), 1u);
  Batch batch = test::rows_of_stream(0, 12);
  run.engine.backward(run.engine.forward(batch));
  EXPECT_THAT(
      [&] { run.engine.begin_snapshot(snapshots); },
      ThrowsMessage<RuntimeFault>(HasSubstr("begin_snapshot in the middle of a step (1 of 1 micro-batches done)")));
}

TEST(Snapshot, IsDueAsTheConfigurationSays) {
  const TemporaryFolder place;
  SnapshotFolder snapshots(place.path(), 0, 1);
  MixedRun run(config_of({"", R"("stage": 0)", R"({"type": "SGD", "params": {"lr": 0.01}})",
                          R"(, "capstan": {"elastic": {"every": 3}})"},
                         1, ""),
               Communicator::alone());
  run.steps(3);
  EXPECT_FALSE(run.engine.snapshot_due());  // nobody wants any
  run.engine.want_snapshots(true);
  std::vector<std::int64_t> at;
  for (int i = 0; i < 7; ++i) {
    run.step();
    if (run.engine.snapshot_due()) at.push_back(run.engine.progress().global_steps);
  }
  EXPECT_EQ(at, (std::vector<std::int64_t>{6, 9}));
}

/// All ranks are told at the same step, whatever each has measured.
TEST(Snapshot, IsDueOnAllRanksAlikeWhereItsCostSays) {
  in_worlds({{3, [](Communicator& ranks, const std::string& folder) {
                SnapshotFolder snapshots(folder, ranks.rank(), 1);
                MixedRun run(config_of({"", R"("stage": 1)", R"({"type": "AdamW", "params": {"lr": 0.01}})",
                                        R"(, "capstan": {"elastic": {"overhead": 0.5}})"},
                                       3, ""),
                             shared(ranks));
                run.engine.want_snapshots(true);
                std::string at;
                for (int i = 0; i < 30; ++i) {
                  run.step();
                  if (!run.engine.snapshot_due()) continue;
                  at += std::to_string(i) + " ";
                  run.engine.begin_snapshot(snapshots);
                }
                EXPECT_TRUE(at.starts_with("0 ")) << at;
                for (const std::string& of_rank : ranks.all_gather_text("test: due", at)) EXPECT_EQ(of_rank, at);
                EXPECT_GT(run.engine.snapshot_seconds(), 0);
              }}});
}

/// Flips a bit of the last tensor in a segment.
void damage(const std::filesystem::path& file) {
  const auto sealed = SealedSegment::read(file);
  ASSERT_TRUE(sealed) << file;
  const auto at =
      static_cast<std::streamoff>(sealed->data().data() + sealed->data().size() / 2 - sealed->bytes().data());
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekg(at);
  const int byte = out.get();
  out.seekp(at);
  out.put(static_cast<char>(byte ^ 1));
}

/// The segment of a member that holds that step.
std::filesystem::path segment_of(const std::string& folder, std::int64_t member, std::int64_t step) {
  for (const SealedSegment& segment : SnapshotFolder(folder, 999, 1).find().segments) {
    const bool own = segment.path().filename().string().starts_with("member-" + std::to_string(member) + ".");
    if (own && segment.facts().step == step) return segment.path();
  }
  return "";
}

TEST(Snapshot, ThatIsDamagedIsNamedAndTheOlderOneTaken) {
  const Case given{"", R"("stage": 2)"};
  const auto reader = [&](const std::optional<std::int64_t>& step, const std::string& told) {
    return InWorld{2, [=](Communicator& ranks, const std::string& folder) {
                     SnapshotFolder snapshots(folder + "/snapshots", 20 + ranks.rank(), 2);
                     TogetherRun run(config_of(given, 2, ""), shared(ranks));
                     testing::internal::CaptureStderr();
                     const auto found = run.engine.load_snapshot(snapshots);
                     const std::string err = testing::internal::GetCapturedStderr();
                     EXPECT_EQ(found.has_value(), step.has_value());
                     EXPECT_EQ(run.engine.progress().global_steps, step.value_or(0));
                     EXPECT_THAT(err, HasSubstr(ranks.rank() == 0 ? told : ""));
                     run.steps(1);
                     // The next reader's turn: one more is damaged.
                     if (ranks.rank() == 0) {
                       if (step) damage(segment_of(folder + "/snapshots", 11, *step));
                     }
                   }};
  };
  const std::string told = "is damaged: it does not match its checksum. The snapshot of step ";
  in_worlds({writers(given),
             {1, [](Communicator&, const std::string& folder) { damage(segment_of(folder + "/snapshots", 10, 4)); }},
             reader(3, told + "4 is not used."),
             reader(std::nullopt, told + "3 is not used.")});
}

TEST(Snapshot, OfAnotherRunIsNamedAndLeftAlone) {
  const TemporaryFolder place;
  const Case given{"", R"("stage": 0)"};
  SnapshotFolder snapshots(place.path(), 0, 1);
  MixedRun other(config_of(given, 1, ""), Communicator::alone(), 2),
      run(config_of(given, 1, ""), Communicator::alone());
  const Case sgd{"", R"("stage": 0)", R"({"type": "SGD", "params": {"lr": 0.01}})"};
  MixedRun without(config_of(sgd, 1, ""), Communicator::alone());
  other.steps(1);
  other.engine.begin_snapshot(snapshots);
  EXPECT_TRUE(other.engine.finish_snapshot());
  for (MixedRun* one : {&run, &without}) {
    const at::Tensor before = one->values().clone();
    testing::internal::CaptureStderr();
    EXPECT_FALSE(one->engine.load_snapshot(snapshots).has_value());
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("snapshot of step 1 in '" + place.path().string() +
                          "': it is of another run: its model or its optimizer is another one. It is not used."));
    EXPECT_TRUE(at::equal(one->values(), before));
  }
}

TEST(Snapshot, WithoutRoomIsRefusedOnAllRanksWithWhatIsNeeded) {
  in_worlds({{2, [](Communicator& ranks, const std::string& folder) {
                std::optional<test::SmallDisk> disk;
                // Mounted in the parent's namespace: both see it.
                if (ranks.rank() == 0) disk.emplace(folder, "1m");
                const auto mounted = ranks.all_gather_text("test: disk", disk && disk->mounted() ? "yes" : "");
                if (mounted[0].empty()) return;  // this user may not mount
                {
                  SnapshotFolder snapshots(folder, ranks.rank(), 1);
                  MixedRun run(config_of({"", R"("stage": 1)"}, 2, ""), shared(ranks));
                  run.steps(1);
                  EXPECT_THAT([&] { run.engine.begin_snapshot(snapshots); },
                              ThrowsMessage<RuntimeFault>(testing::AllOf(
                                  HasSubstr("elasticity: the snapshots of 2 processes on this host, two of each part "
                                            "of the training's state, need "),
                                  HasSubstr(" MB in '" + folder + "', and there "), HasSubstr(" MB are free. "),
                                  HasSubstr("mount -o remount,size="), HasSubstr("--shm-size="))));
                  run.steps(1);  // and training goes on
                }
                ranks.all_gather_text("test: end", "");
              }}});
}

/// Fills what a file system has left. Removed with the object.
class Filling {
 public:
  explicit Filling(std::filesystem::path file) : file_(std::move(file)) {
    std::ofstream out(file_, std::ios::binary);
    const std::string page(4096, 'x');
    while (out << page << std::flush) {
    }
  }
  ~Filling() { std::filesystem::remove(file_); }

 private:
  std::filesystem::path file_;
};

TEST(Snapshot, ThatFindsNoRoomAnyMoreIsToldOnceAndTheOlderOneStays) {
  const TemporaryFolder place;
  const test::SmallDisk disk(place.path(), "8m");
  if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
  SnapshotFolder snapshots(place.path(), 0, 1);
  MixedRun run(config_of({"", R"("stage": 0)"}, 1, ""), Communicator::alone());
  const auto snapshot = [&] {
    run.steps(1);
    run.engine.begin_snapshot(snapshots);
    return run.engine.finish_snapshot();
  };
  EXPECT_TRUE(snapshot());
  {
    const Filling filling(place / "filling");
    testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(snapshot());
    const std::string told = testing::internal::GetCapturedStderr(),
                      sentence = "a snapshot is not made, and older ones stay: snapshot '" +
                                 (place / "member-0.1").string() + "': no room for its ";
    EXPECT_THAT(told, HasSubstr(sentence));
    EXPECT_EQ(told.find(sentence), told.rfind(sentence)) << told;
    ASSERT_TRUE(run.engine.load_snapshot(snapshots).has_value());
    EXPECT_EQ(run.engine.progress().global_steps, 1);
  }
  EXPECT_TRUE(snapshot());
  ASSERT_TRUE(run.engine.load_snapshot(snapshots).has_value());
  EXPECT_EQ(run.engine.progress().global_steps, 2);
}

/// The steps of the parts of rank 0 that are in a folder.
std::set<std::int64_t> steps_of_rank_0(const SnapshotFolder& snapshots) {
  std::set<std::int64_t> steps;
  for (const SealedSegment& segment : snapshots.find().segments) {
    if (segment.facts().rank == 0) steps.insert(segment.facts().step);
  }
  return steps;
}

/// The others write over their parts of it, and not over the last one that is whole.
TEST(Snapshot, ThatFailsOnOneRankIsKeptByNone) {
  const Case given{"", R"("stage": 2)"};
  const InWorld fails = {2, [&](Communicator& ranks, const std::string& folder) {
                           SnapshotFolder snapshots(folder, ranks.rank(), 1);
                           TogetherRun run(config_of(given, 2, ""), shared(ranks));
                           const auto snapshot = [&] {
                             run.engine.begin_snapshot(snapshots);
                             run.step();  // at whose end ranks tell each other
                           };
                           run.step();
                           snapshot();
                           // The second segment of rank 1 cannot be opened.
                           const std::string segment = folder + "/member-1.1";
                           if (ranks.rank() == 1) std::filesystem::create_directory(segment);
                           for (int i = 0; i < 3; ++i) snapshot();
                           if (ranks.rank() == 0) EXPECT_EQ(steps_of_rank_0(snapshots), (std::set<std::int64_t>{1, 4}));
                           ranks.all_gather_text("test: looked", "");
                           if (ranks.rank() == 1) std::filesystem::remove(segment);
                         }};
  const InWorld goes_on = {2, [&](Communicator& ranks, const std::string& folder) {
                             SnapshotFolder snapshots(folder, 10 + ranks.rank(), 2);
                             TogetherRun run(config_of(given, 2, ""), shared(ranks));
                             ASSERT_TRUE(run.engine.load_snapshot(snapshots).has_value());
                             EXPECT_EQ(run.engine.progress().global_steps, 1);
                           }};
  in_worlds({fails, goes_on});
}

/// A rank is killed at some instant, and another world goes on from what it and the others have left.
TEST(Snapshot, OutlivesItsRanksWithTheStateOfAStepThatAllHadDone) {
  const Case given{"", R"("stage": 2)"};
  for (int round = 0; round < 3; ++round) {
    const char* own = std::getenv("CAPSTAN_TEST_ROUND");
    if (own != nullptr && std::stoi(own) != round) continue;
    const char* phase = std::getenv("CAPSTAN_TEST_PHASE");
    test::RanksOptions options;
    const char* known = std::getenv("CAPSTAN_TEST_SNAPSHOTS");
    std::optional<TemporaryFolder> place;  // not in the ranks, which end without removing it
    const std::string folder = known ? known : place.emplace("/dev/shm").path().string();
    const auto environment = [&](const char* of_phase) {
      return [=](int) {
        return std::vector<std::string>{"CAPSTAN_TEST_ROUND=" + std::to_string(round),
                                        "CAPSTAN_TEST_SNAPSHOTS=" + folder,
                                        std::string("CAPSTAN_TEST_PHASE=") + of_phase};
      };
    };
    options.environment = environment("train");
    options.watch_every = std::chrono::milliseconds(50);
    if (phase == nullptr || std::string(phase) == "train") {
      const auto results = test::run_ranks(
          3,
          [&](Communicator& ranks) {
            SnapshotFolder snapshots(folder, ranks.rank(), 1);
            TogetherRun run(config_of(given, 3, ""), shared(ranks));
            std::thread killer;
            for (int step = 1;; ++step) {
              run.step();
              run.engine.begin_snapshot(snapshots);
              if (step < 3 || ranks.rank() != round || killer.joinable()) continue;
              killer = std::thread([round] {
                std::mt19937 random(static_cast<unsigned>(round));
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
                kill(getpid(), SIGKILL);
              });
            }
          },
          options);
      EXPECT_EQ(results[static_cast<std::size_t>(round)].exit_code, -1);  // by a signal
    }
    options.environment = environment("load");
    test::expect_on_ranks(
        3,
        [&](Communicator& ranks) {
          SnapshotFolder snapshots(folder, 10 + ranks.rank(), 2);
          TogetherRun run(config_of(given, 3, ""), shared(ranks));
          ASSERT_TRUE(run.engine.load_snapshot(snapshots).has_value());
          const std::int64_t step = run.engine.progress().global_steps;
          EXPECT_GE(step, 2);
          TogetherRun straight(config_of(given, 3, ""), shared(ranks));
          straight.steps(static_cast<int>(step));
          EXPECT_TRUE(at::equal(run.values(), straight.values()));
          EXPECT_EQ(run.steps(2), straight.steps(2));
          // Once there is a whole one of this world, what the old one has left goes.
          for (int i = 0; i < 3; ++i) {
            run.engine.begin_snapshot(snapshots);
            run.step();
          }
          ranks.all_gather_text("test: all have", "");
          for (const SealedSegment& segment : snapshots.find().segments) EXPECT_EQ(segment.facts().generation, 2);
        },
        options);
  }
}

std::string host_folder(const std::string& folder, int host) { return folder + "/host" + std::to_string(host); }

/// Three hosts of one rank, each of which sees its own folder alone.
InWorld hosts(const Case& given) {
  return {3, [&given](Communicator& ranks, const std::string& folder) {
            SnapshotFolder snapshots(host_folder(folder, ranks.rank()), 10 + ranks.rank(), 1);
            TogetherRun run(config_of(given, 3, folder), shared(ranks));
            for (int i = 0; i < 4; ++i) {
              run.steps(1);
              run.engine.begin_snapshot(snapshots, client_state());
            }
            run.engine.save_checkpoint(folder + "/saved");
            run.engine.finish_snapshot();
            const auto found = snapshots.find();
            EXPECT_EQ(found.segments.size(), 4u);  // two of its own, two of its neighbour's
          }};
}

/// Ranks on the hosts of that number, each again with its own folder; a host that was not there before has none.
InWorld on_hosts(std::vector<int> numbers, const Case& given) {
  return {static_cast<int>(numbers.size()), [=](Communicator& ranks, const std::string& folder) {
            const int host = numbers[static_cast<std::size_t>(ranks.rank())];
            SnapshotFolder snapshots(host_folder(folder, host), 20 + ranks.rank(), 2);
            const std::string config = config_of(given, ranks.size(), folder);
            TogetherRun run(config, shared(ranks)), checked(config, shared(ranks));
            const auto found = run.engine.load_snapshot(snapshots);
            ASSERT_TRUE(found.has_value());
            EXPECT_EQ(*found, client_state());
            checked.engine.load_checkpoint(folder + "/saved");
            expect_same(all_of(run, folder + "/a"), all_of(checked, folder + "/b"));
            EXPECT_EQ(run.steps(2), checked.steps(2));
          }};
}

TEST(Snapshot, OfAHostThatIsLostIsTakenFromItsPartner) {
  const Case given{"", R"("stage": 2)"};
  in_worlds({hosts(given), on_hosts({0, 2}, given), on_hosts({1, 2, 7}, given)}, /*ranks_per_host=*/1);
}

}  // namespace
}  // namespace capstan
