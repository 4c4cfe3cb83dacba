// Buffers that a forward changes by its own samples, as batch norm's running statistics, in checkpoints and snapshots.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Names = std::set<std::string>;

/// A weight; "mean", the mean of the samples so far; "steps", how many batches there were; "seen", a parameter of whole
/// numbers that holds the last sample; "table", which is constant; and "mask", as large as `longest`.
struct Averaging {
  at::Tensor weight, seen, mean, steps, table, mask;
  std::string facts = R"({"non_persistent_buffers": ["mask"]})";

  explicit Averaging(double value, std::int64_t longest)
      : weight(at::full({5}, value).requires_grad_(true)),
        seen(at::full({1}, static_cast<std::int64_t>(value), at::kLong)),
        mean(at::full({1}, value)),
        steps(at::zeros({}, at::kLong)),
        table(at::full({3}, 7.0)),
        mask(at::full({longest}, value)) {}

  static const capstan_model& vtable() {
    static const capstan_model instance = [] {
      capstan_model made{};
      made.struct_size = sizeof made;
      made.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
        const auto& model = *static_cast<Averaging*>(self);
        const auto show = [&](const char* name, const at::Tensor& tensor, capstan_role role) {
          visitor->tensor(visitor->ctx, as_str(name), handle_of(tensor), role);
        };
        show("weight", model.weight, CAPSTAN_ROLE_PARAMETER);
        show("seen", model.seen, CAPSTAN_ROLE_PARAMETER);
        show("mean", model.mean, CAPSTAN_ROLE_BUFFER);
        show("steps", model.steps, CAPSTAN_ROLE_BUFFER);
        show("table", model.table, CAPSTAN_ROLE_BUFFER);
        show("mask", model.mask, CAPSTAN_ROLE_BUFFER);
        return CAPSTAN_OK;
      };
      made.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
        auto& model = *static_cast<Averaging*>(self);
        const at::Tensor& x = batch->tensors.find("x")->second;
        model.mean.mul_(0.5).add_(x * 0.5);
        model.steps.add_(1);
        model.seen.copy_(x);
        *loss = reinterpret_cast<capstan_tensor>(new at::Tensor((model.weight * model.mean).pow(2).mean()));
        return CAPSTAN_OK;
      };
      made.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
      made.describe = [](void* self, capstan_sink* sink, capstan_error*) {
        sink->text = static_cast<Averaging*>(self)->facts;
        return CAPSTAN_OK;
      };
      return made;
    }();
    return instance;
  }
};

/// The sample of a rank at a step.
double sample(int rank, std::int64_t step) { return 10.0 * (rank + 1) + static_cast<double>(step); }

struct AveragingRun {
  explicit AveragingRun(const std::shared_ptr<Communicator>& ranks, int stage = 0, double value = 1,
                        std::int64_t longest = 4, const std::string& facts = "")
      : model(value, longest), engine([&] {
          if (!facts.empty()) model.facts = facts;
          ConfigContext context;
          context.world_size = ranks->size();
          const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": null,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )" +
                                   std::to_string(stage) + "}}";
          Model shown(
              &Averaging::vtable(), &model, [](void*) {}, "averaging");
          return Engine(std::move(shown), load_config({text, "test", false}, context, plugins), plugins, ranks);
        }()) {}

  double step() {
    return engine.train_batch([&] {
      Batch batch;
      batch.tensors.emplace("x", at::full({1}, sample(engine.rank(), engine.progress().global_steps)));
      return batch;
    });
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }

  PluginIndex plugins;
  Averaging model;
  Engine engine;
};

/// The mean of a rank after three steps, from 1 on, by hand.
double mean_of(int rank) {
  double mean = 1;
  for (int step = 0; step < 3; ++step) mean = 0.5 * mean + 0.5 * sample(rank, step);
  return mean;
}

void expect_own(AveragingRun& run, int of_rank, const std::string& what) {
  EXPECT_EQ(run.model.mean.item<double>(), mean_of(of_rank)) << what;
  EXPECT_EQ(run.model.seen.item<double>(), sample(of_rank, 2)) << what;
  EXPECT_EQ(run.model.steps.item<std::int64_t>(), 3) << what;
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

Names names_of(const CheckpointContents& contents) {
  Names names;
  for (const CheckpointTensor& tensor : contents.tensors) {
    const bool of_forward = tensor.state.starts_with("param") || tensor.state.starts_with("buffer");
    if (of_forward) names.insert(tensor.state + "/" + tensor.parameter);
  }
  return names;
}

template <class Run>
std::string logged_by(const Run& run) {
  testing::internal::CaptureStderr();
  run();
  return testing::internal::GetCapturedStderr();
}

TEST(ForwardTensors, OfEachRankAreSavedWhereTheyDifferAndComeBack) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    for (const int stage : {0, 3}) {
      const std::string tag = "stage" + std::to_string(stage);
      AveragingRun run(shared(ranks), stage), resumed(shared(ranks), stage, 2);
      run.steps(3);
      run.engine.save_checkpoint(dir, tag);
      EXPECT_EQ(names_of(read_checkpoint(dir, tag)),
                (Names{"param/weight", "param/seen", "param of rank 1/seen", "buffer/mean", "buffer of rank 1/mean",
                       "buffer/steps", "buffer/table"}));
      resumed.engine.load_checkpoint(dir, tag);
      expect_own(resumed, ranks.rank(), tag);
      EXPECT_EQ(resumed.step(), run.step()) << tag;
    }
    ranks.all_gather_text("test: end", "");
  });
}

TEST(ForwardTensors, OfACheckpointThatHoldsRank0sAloneAreTakenByAllRanks) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    AveragingRun run(shared(ranks)), resumed(shared(ranks), 0, 2);
    run.steps(3);
    run.engine.save_checkpoint(dir, "new");
    if (ranks.rank() == 0) {
      CheckpointContents contents = read_checkpoint(dir, "new");
      std::erase_if(contents.tensors, [](const CheckpointTensor& tensor) {
        return !tensor.parameter.empty() && tensor.state.ends_with(" of rank 1");
      });
      write_checkpoint(dir, "old", contents);
    }
    ranks.all_gather_text("test: written", "");
    resumed.engine.load_checkpoint(dir, "old");
    expect_own(resumed, 0, "old");
    ranks.all_gather_text("test: end", "");
  });
}

TEST(ForwardTensors, OfRank0AreTakenByAllInAnotherWorldAndThatIsLogged) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    AveragingRun run(shared(ranks));
    run.steps(3);
    run.engine.save_checkpoint(dir, "two");
    if (ranks.rank() == 1) {
      AveragingRun alone(Communicator::alone(), 0, 2);
      EXPECT_THAT(
          logged_by([&] { alone.engine.load_checkpoint(dir, "two"); }),
          HasSubstr(dir + "/two: each of its 2 processes had values of its own of 'mean', 'seen'. With 1, all go "
                          "on with those of rank 0."));
      expect_own(alone, 0, "alone");
      alone.engine.save_checkpoint(dir, "one");
      EXPECT_FALSE(names_of(read_checkpoint(dir, "one")).contains("buffer of rank 1/mean"));
    }
    ranks.all_gather_text("test: end", "");
  });
}

TEST(ForwardTensors, OfEachRankComeBackFromASnapshot) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    AveragingRun run(shared(ranks), 1);
    {
      SnapshotFolder snapshots(dir, ranks.rank(), 1);
      run.steps(3);
      run.engine.begin_snapshot(snapshots);
      run.steps(1);
      EXPECT_TRUE(run.engine.finish_snapshot());
    }
    SnapshotFolder snapshots(dir, 10 + ranks.rank(), 2);
    AveragingRun resumed(shared(ranks), 1, 2);
    ASSERT_TRUE(resumed.engine.load_snapshot(snapshots).has_value());
    expect_own(resumed, ranks.rank(), "snapshot");
    if (ranks.rank() == 0) {
      AveragingRun alone(Communicator::alone(), 0, 2);
      SnapshotFolder again(dir, 20, 3);
      EXPECT_THAT(logged_by([&] { ASSERT_TRUE(alone.engine.load_snapshot(again).has_value()); }),
                  HasSubstr("each of its 2 processes had values of its own of 'mean', 'seen'."));
      expect_own(alone, 0, "alone");
    }
    ranks.all_gather_text("test: end", "");
  });
}

TEST(ForwardTensors, OfAnotherShapeAreRefusedByAllRanks) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    AveragingRun run(shared(ranks));
    run.steps(3);
    run.engine.save_checkpoint(dir, "good");
    if (ranks.rank() == 0) {
      CheckpointContents contents = read_checkpoint(dir, "good");
      for (CheckpointTensor& tensor : contents.tensors) {
        if (tensor.state == "buffer of rank 1") tensor = {tensor.parameter, tensor.state, {2}, 0, at::ones({2})};
      }
      write_checkpoint(dir, "bad", contents);
    }
    ranks.all_gather_text("test: written", "");
    EXPECT_THAT(
        [&] { run.engine.load_checkpoint(dir, "bad"); },
        ThrowsMessage<RuntimeFault>(HasSubstr("'mean', state 'buffer of rank 1' has shape [2], this model's is [1].")));
    ranks.all_gather_text("test: end", "");
  });
}

TEST(ForwardTensors, ThatAreNotPersistentAreTheConstructors) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  AveragingRun run(Communicator::alone()), longer(Communicator::alone(), 0, 2, /*longest=*/9);
  run.steps(1);
  run.engine.save_checkpoint(dir, "saved");
  EXPECT_FALSE(names_of(read_checkpoint(dir, "saved")).contains("buffer/mask"));
  EXPECT_EQ(logged_by([&] { longer.engine.load_checkpoint(dir, "saved"); }), "");
  EXPECT_TRUE(at::equal(longer.model.mask, at::full({9}, 2.0)));
  EXPECT_EQ(longer.step(), run.step());
}

TEST(ForwardTensors, ThatAreNotPersistentAnyMoreAreIgnoredWithAWord) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  AveragingRun earlier(Communicator::alone(), 0, 1, 4, "{}"), run(Communicator::alone(), 0, 2, /*longest=*/9);
  earlier.steps(1);
  earlier.engine.save_checkpoint(dir, "earlier");
  EXPECT_TRUE(names_of(read_checkpoint(dir, "earlier")).contains("buffer/mask"));
  EXPECT_THAT(
      logged_by([&] { run.engine.load_checkpoint(dir, "earlier"); }),
      HasSubstr(dir + "/earlier: holds buffer 'mask', which this model does not keep in checkpoints. The model's "
                      "own values stay."));
  EXPECT_TRUE(at::equal(run.model.mask, at::full({9}, 2.0)));
}

}  // namespace
}  // namespace capstan
