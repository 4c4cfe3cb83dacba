// Checkpoints whose parts lie on the nodes that wrote them; here a node is a folder, and the ranks that know it.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::MixedRun;
using testing::HasSubstr;

constexpr const char* kConfig = R"({"train_micro_batch_size_per_gpu": 3, "steps_per_print": null,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 2},
  "checkpoint": {"use_node_local_storage": true}})";

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

fs::path common_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void meet(Communicator& communicator) { communicator.all_gather_text("test: meet", ""); }

void on_two_nodes(const std::function<void(Communicator&, const fs::path& all)>& body) {
  test::RanksOptions options;
  options.ranks_per_host = 2;
  test::expect_on_ranks(
      4,
      [&](Communicator& communicator) {
        std::optional<test::TemporaryFolder> folder;
        const fs::path all = common_folder(communicator, folder);
        body(communicator, all);
        meet(communicator);  // rank 0 removes the folder
      },
      options);
}

TEST(NodeStorage, HoldsTheFilesOfItsOwnRanksAndIsCompletedByTheOthers) {
  on_two_nodes([](Communicator& communicator, const fs::path& all) {
    const std::string node = communicator.rank() < 2 ? "a" : "b", other = communicator.rank() < 2 ? "b" : "a";
    MixedRun run(kConfig, shared(communicator));
    run.steps(2);
    run.engine.save_checkpoint(all / node);
    std::set<std::string> expected = {"index.json", "state.json"};
    const int first = communicator.rank() < 2 ? 0 : 2;
    for (int rank = first; rank < first + 2; ++rank) {
      expected.insert("rank_0000" + std::to_string(rank) + ".safetensors");
    }
    EXPECT_EQ(names_in(all / node / "global_step2"), expected);
    run.steps(2);
    const auto goes_on_from = [&](const fs::path& place) {
      MixedRun resumed(kConfig, shared(communicator));
      resumed.engine.load_checkpoint(place);
      resumed.steps(2);
      EXPECT_TRUE(at::equal(resumed.values(), run.values())) << place;
    };
    // Nodes that come up the other way round have the others' files; then one of them is lost.
    goes_on_from(all / other);
    EXPECT_EQ(names_in(all / node / "global_step2").size(), 6U);
    meet(communicator);
    if (communicator.rank() == 3) fs::remove_all(all / "b");
    meet(communicator);
    goes_on_from(all / node);
    EXPECT_TRUE(fs::exists(all / "b" / "latest"));
  });
}

TEST(NodeStorage, IsWrittenInTheBackgroundAsWell) {
  on_two_nodes([](Communicator& communicator, const fs::path& all) {
    std::string config = kConfig;
    config.replace(config.rfind("}}"), 2, R"(, "writer": {"decoupled": true}}})");
    const std::string node = (all / (communicator.rank() < 2 ? "a" : "b")).string();
    MixedRun run(config, shared(communicator));
    run.steps(2);
    const at::Tensor values = run.values().clone();
    run.engine.save_checkpoint(node, "kept");
    run.steps(2);
    run.engine.finish_saving();
    meet(communicator);
    // Each node has the files of its own ranks, and gets the others' when it loads.
    const std::size_t files = names_in(fs::path(node) / "kept").size();
    meet(communicator);
    MixedRun again(config, shared(communicator));
    again.engine.load_checkpoint(node);
    EXPECT_TRUE(at::equal(again.values(), values));
    EXPECT_LT(files, names_in(fs::path(node) / "kept").size());
  });
}

TEST(NodeStorage, NamesTheFileThatNoNodeHas) {
  on_two_nodes([](Communicator& communicator, const fs::path& all) {
    const fs::path node = all / (communicator.rank() < 2 ? "a" : "b");
    MixedRun run(kConfig, shared(communicator));
    run.steps(1);
    run.engine.save_checkpoint(node);
    meet(communicator);
    if (communicator.rank() == 3) fs::remove_all(all / "b");
    meet(communicator);
    try {
      run.engine.load_checkpoint(node);
      ADD_FAILURE() << "loaded";
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("rank_00002.safetensors': it is missing."));
    }
  });
}

TEST(NodeStorage, RefusesNodesThatHaveDifferentCheckpointsOfOneName) {
  on_two_nodes([](Communicator& communicator, const fs::path& all) {
    MixedRun run(kConfig, shared(communicator));
    const auto save = [&](const char* name) {
      const fs::path place = all / name / (communicator.rank() < 2 ? "a" : "b");
      run.engine.save_checkpoint(place, "same");
      return place;
    };
    const fs::path before = save("before");
    run.steps(1);
    const fs::path after = save("after");
    try {
      run.engine.load_checkpoint(communicator.rank() < 2 ? before : after);
      ADD_FAILURE() << "loaded";
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("ranks 0 and 2 have different checkpoints of that name on their nodes."));
    }
    EXPECT_THAT([&] { run.engine.load_checkpoint(all / "nowhere"); },
                testing::ThrowsMessage<RuntimeFault>(HasSubstr("no node has a file 'latest' there to tell which.")));
  });
}

TEST(NodeStorage, TellsAllRanksOfTheNodeThatCannotWrite) {
  on_two_nodes([](Communicator& communicator, const fs::path& all) {
    const fs::path node = all / (communicator.rank() < 2 ? "a" : "b");
    MixedRun run(kConfig, shared(communicator));
    run.engine.save_checkpoint(node, "kept");
    meet(communicator);
    if (communicator.rank() == 2) {
      fs::remove_all(node / "kept");
      std::ofstream(node / "kept") << "a file";  // no folder can be made there
    }
    meet(communicator);
    const std::string begin = communicator.rank() == 2 ? "folder '" : "rank 2: folder '";
    EXPECT_THAT([&] { run.engine.load_checkpoint(node, "kept"); },
                testing::ThrowsMessage<RuntimeFault>(
                    testing::AllOf(testing::StartsWith(begin), HasSubstr("b/kept' cannot be created: "))));
    run.steps(1);  // none of them waits for another
  });
}

TEST(NodeStorage, LeavesNothingOfAFileThatCannotBePut) {
  on_two_nodes([](Communicator& communicator, const fs::path& all) {
    const fs::path node = all / (communicator.rank() < 2 ? "a" : "b"), place = node / "kept/rank_00000.safetensors";
    MixedRun run(kConfig, shared(communicator));
    run.engine.save_checkpoint(node, "kept");
    meet(communicator);
    if (communicator.rank() == 2) fs::create_directories(place / "in the way");
    meet(communicator);
    const std::set<std::string> before = names_in(node / "kept");
    EXPECT_THAT([&] { run.engine.load_checkpoint(node, "kept"); },
                testing::ThrowsMessage<RuntimeFault>(HasSubstr("b/kept/rank_00000.safetensors': Is a directory")));
    meet(communicator);
    EXPECT_EQ(names_in(node / "kept"), before);
    EXPECT_EQ(names_in(node), (std::set<std::string>{"kept", "latest"}));
  });
}

}  // namespace
}  // namespace capstan
