#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Looks up some of many rows, some of them twice; the gradient of the table is a sparse tensor if so wanted.
struct LookupModel {
  std::vector<NamedTensor> parameters;
  bool sparse_layout;

  explicit LookupModel(bool sparse) : sparse_layout(sparse) {
    at::manual_seed(5);
    parameters = {{"words.weight", at::randn({5000, 16})}, {"head", at::randn({16, 3})}};
    for (NamedTensor& parameter : parameters) parameter.tensor.requires_grad_(true);
  }

  at::Tensor loss(const at::Tensor& x) const {
    const at::Tensor ids = x.abs().mul(20).to(at::kLong).clamp_max(4999).reshape({-1});
    const at::Tensor rows = at::embedding(parameters[0].tensor, ids, -1, false, sparse_layout);
    return rows.matmul(parameters[1].tensor).tanh().mean();
  }

  static const capstan_model& table() {
    static const capstan_model instance = [] {
      capstan_model table{};
      table.struct_size = sizeof table;
      table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
        visitor->module(visitor->ctx, as_str("words"), as_str("torch::nn::EmbeddingImpl"));
        for (const NamedTensor& parameter : static_cast<LookupModel*>(self)->parameters) {
          visitor->tensor(visitor->ctx, as_str(parameter.name), handle_of(parameter.tensor), CAPSTAN_ROLE_PARAMETER);
        }
        return CAPSTAN_OK;
      };
      table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
        *loss = reinterpret_cast<capstan_tensor>(
            new at::Tensor(static_cast<LookupModel*>(self)->loss(batch->tensors.find("x")->second)));
        return CAPSTAN_OK;
      };
      table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
      return table;
    }();
    return instance;
  }
};

/// The table and the head after some steps, and the bytes that this rank sent in the last of them.
struct Outcome {
  at::Tensor table, head;
  std::uint64_t sent = 0;
};

std::uint64_t sent_by(Communicator& communicator) {
  std::uint64_t bytes = 0;
  for (const auto& [name, traffic] : communicator.log().traffic()) bytes += traffic.bytes;
  return bytes;
}

Outcome train(std::shared_ptr<Communicator> ranks, bool sparse_layout, const std::string& more,
              const std::string& optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})") {
  LookupModel model(sparse_layout);
  PluginIndex plugins;
  ConfigContext context;
  context.world_size = ranks->size();
  const std::string text = R"({"train_batch_size": 24, "gradient_accumulation_steps": 2, "steps_per_print": null,
    "gradient_clipping": 0.01, "optimizer": )" +
                           optimizer + more + "}";
  const Config config = load_config({text, "test", false}, context, plugins);
  Engine engine(Model(
                    &LookupModel::table(), &model, [](void*) {}, "lookup"),
                config, plugins, ranks);
  std::int64_t row = ranks->rank();
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    const std::uint64_t before = sent_by(*ranks);
    engine.train_batch([&] {
      Batch batch = test::rows_of_stream(row * 100, engine.config().batch.micro_batch_size);
      row += ranks->size();
      return batch;
    });
    outcome.sent = sent_by(*ranks) - before;
  }
  outcome.table = model.parameters[0].tensor.detach().to(at::kFloat);
  outcome.head = model.parameters[1].tensor.detach().to(at::kFloat);
  return outcome;
}

class SparseGradients : public testing::TestWithParam<int> {};

TEST_P(SparseGradients, OfEmbeddingsGiveTheParametersOfDenseOnesBitForBit) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    for (const std::string variant :
         {"", R"(, "zero_optimization": {"stage": 0, "reduce_bucket_size": 10, "overlap_comm": true})",
          R"(, "bf16": {"enabled": true})", R"(, "prescale_gradients": true, "gradient_allreduce_op": "mean")"}) {
      const Outcome dense = train(ranks, false, variant);
      for (const bool sparse_layout : {false, true}) {
        const Outcome sparse = train(ranks, sparse_layout, variant + R"(, "sparse_gradients": true)");
        EXPECT_TRUE(at::equal(sparse.table, dense.table)) << variant << sparse_layout;
        EXPECT_TRUE(at::equal(sparse.head, dense.head)) << variant << sparse_layout;
        // A step looks up 120 rows of 5000 at most.
        EXPECT_LT(sparse.sent * 5, dense.sent) << variant;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SparseGradients, testing::Values(2, 3));

TEST(SparseGradient, TrainsInOneProcessAsADenseOneDoes) {
  const Outcome dense = train(Communicator::alone(), false, "");
  const Outcome sparse = train(Communicator::alone(), true, R"(, "sparse_gradients": true)");
  // Rows that two micro-batches look up are added in another order.
  EXPECT_TRUE(sparse.table.allclose(dense.table, 1e-5, 1e-6));
}

TEST(SparseGradient, IsRefusedByNameWhereItIsNotAskedFor) {
  EXPECT_THAT([] { train(Communicator::alone(), true, ""); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr("parameter 'words.weight': has a sparse gradient, and optimizers update dense ones. Set "
                            "sparse_gradients, or build the embedding with sparse = false.")));
}

const char* const kSparseAdam = R"({"type": "SparseAdam", "params": {"lr": 0.01, "allow_dense": true}})";
const char* const kSparse = R"(, "sparse_gradients": true)";

/// The rows of the table that are not what they were.
at::Tensor moved_rows(const at::Tensor& table) {
  return table.ne(LookupModel(true).parameters[0].tensor.detach()).any(1).nonzero();
}

TEST(SparseAdam, MovesTheRowsThatWereLookedUpAlone) {
  const Outcome sparse = train(Communicator::alone(), true, kSparse, kSparseAdam);
  // Without momentum only rows with a gradient move.
  const Outcome sgd = train(Communicator::alone(), true, kSparse, R"({"type": "SGD", "params": {"lr": 0.01}})");
  const at::Tensor rows = moved_rows(sparse.table);
  EXPECT_TRUE(at::equal(rows, moved_rows(sgd.table)));
  EXPECT_GT(rows.numel(), 5);
  EXPECT_LT(rows.numel(), 500);
  // Adam's moments move a row again after the step that has looked it up.
  EXPECT_FALSE(at::equal(sparse.table, train(Communicator::alone(), true, kSparse).table));
}

TEST(SparseAdam, UpdatesTheRowsThatAnyRankLooksUp) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    for (const std::string variant :
         {"", R"(, "zero_optimization": {"reduce_bucket_size": 10, "overlap_comm": true})"}) {
      const Outcome two = train(ranks, true, kSparse + variant, kSparseAdam);
      std::vector<at::Tensor> both = {at::empty_like(two.table), at::empty_like(two.table)};
      both[static_cast<std::size_t>(communicator.rank())].copy_(two.table);
      communicator.all_gather("tables", both);
      EXPECT_TRUE(at::equal(both[0], both[1])) << variant;
      const at::Tensor sgd = train(ranks, true, kSparse + variant, R"({"type": "SGD", "params": {"lr": 0.01}})").table;
      EXPECT_TRUE(at::equal(moved_rows(two.table), moved_rows(sgd))) << variant;
    }
  });
}

/// Steps of 24 rows in two micro-batches, from the checkpoint in `folder` if there is one; leaves another there.
/// Returns the table.
at::Tensor go_on(const std::shared_ptr<Communicator>& ranks, const std::string& folder, int steps) {
  LookupModel model(true);
  PluginIndex plugins;
  ConfigContext context;
  context.world_size = ranks->size();
  const std::string text =
      R"({"train_batch_size": 24, "gradient_accumulation_steps": )" + std::to_string(2 / ranks->size()) +
      R"(, "steps_per_print": null, "gradient_clipping": 0, "sparse_gradients": true, "optimizer": )" + kSparseAdam +
      "}";
  Engine engine(Model(
                    &LookupModel::table(), &model, [](void*) {}, "lookup"),
                load_config({text, "test", false}, context, plugins), plugins, ranks);
  if (std::filesystem::exists(folder)) engine.load_checkpoint(folder);
  for (int step = 0; step < steps; ++step) {
    std::int64_t first = engine.progress().global_samples + 12 * ranks->rank();
    engine.train_batch([&] {
      Batch batch = test::rows_of_stream(first, 12);
      first += 12 * ranks->size();
      return batch;
    });
  }
  engine.save_checkpoint(folder);
  ranks->all_gather_text("saved", "");
  return model.parameters[0].tensor.detach().clone();
}

TEST(SparseAdam, GoesOnInOneProcessAndBackInTwo) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    const std::string folder = communicator.all_gather_text(
        "folder", (std::filesystem::temp_directory_path() / ("sparse" + std::to_string(getpid()))).string())[0];
    const at::Tensor straight = go_on(ranks, folder + "straight", 6);
    go_on(ranks, folder + "same", 3);
    EXPECT_TRUE(at::equal(go_on(ranks, folder + "same", 3), straight));
    go_on(ranks, folder, 2);
    if (communicator.rank() == 0) go_on(Communicator::alone(), folder, 2);
    communicator.all_gather_text("alone", "");
    // One process adds up the rows of its two micro-batches in another order than two processes theirs.
    EXPECT_TRUE(go_on(ranks, folder, 2).allclose(straight, 1e-4, 1e-5));
    for (const char* more : {"", "straight", "same"}) {
      if (communicator.rank() == 0) std::filesystem::remove_all(folder + more);
    }
  });
}

TEST(SparseAdam, RefusesADenseGradientByName) {
  EXPECT_THAT([] { train(Communicator::alone(), true, kSparse, R"({"type": "SparseAdam"})"); },
              ThrowsMessage<std::exception>(
                  HasSubstr("parameter 'head': has a dense gradient, and SparseAdam updates the rows of sparse ones. "
                            "Build the embedding with sparse = true, set optimizer.params.allow_dense, which updates "
                            "all rows of such parameters, or choose Adam.")));
}

TEST(SparseAdam, IsRefusedWithWhatItNeeds) {
  EXPECT_THAT([] { train(Communicator::alone(), true, "", kSparseAdam); },
              ThrowsMessage<ConfigError>(HasSubstr(
                  "sparse_gradients: 'SparseAdam' updates the rows of sparse gradients: set sparse_gradients true.")));
  EXPECT_THAT([] { train(Communicator::alone(), true, R"(, "zero_optimization": {"stage": 1})", kSparseAdam); },
              ThrowsMessage<ConfigError>(HasSubstr(
                  "optimizer.type: 'SparseAdam' updates the rows of sparse gradients, which are kept at stage 0 alone "
                  "and not with zero_optimization.stage 1. Set the stage to 0, or choose another optimizer.")));
}

/// Modules of a MixedModel, two of whose parameters belong to a linear one.
const std::vector<ModuleRecord> kPairIsLinear = {{"", "Mixed"}, {"pair", "torch::nn::LinearImpl"}};

std::string autocast_config(int ranks, const std::string& zero, const std::string& autocast) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "gradient_clipping": 0, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": )" +
         zero + autocast + "}";
}

TEST(LowerPrecisionModules, SendTheirGradientsInAutocastsType) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    const std::string autocast = R"(, "torch_autocast": {"enabled": true})";
    MixedRun exact(autocast_config(2, R"({"stage": 0})", ""), ranks, 3);
    exact.step();
    MixedRun low(autocast_config(2, R"({"stage": 0})", autocast), ranks, 3, 100'000, kPairIsLinear);
    low.step();
    bool rounded = false;
    for (std::size_t i = 0; i < exact.model.parameters.size(); ++i) {
      const NamedTensor &ours = low.model.parameters[i], &plain = exact.model.parameters[i];
      if (!ours.name.starts_with("pair.")) {
        EXPECT_TRUE(at::equal(ours.tensor, plain.tensor)) << ours.name;
        continue;
      }
      rounded = rounded || !at::equal(ours.tensor, plain.tensor);
      EXPECT_TRUE(ours.tensor.allclose(plain.tensor, 1e-4, 1e-4)) << ours.name;
    }
    EXPECT_TRUE(rounded);

    low.steps(3);
    for (const char* zero :
         {R"({"stage": 0, "reduce_bucket_size": 3000})", R"({"stage": 1})", R"({"stage": 1, "reduce_bucket_size": 1})",
          R"({"stage": 2, "reduce_bucket_size": 3000})"}) {
      MixedRun run(autocast_config(2, zero, autocast), ranks, 3, 100'000, kPairIsLinear);
      run.steps(4);
      EXPECT_TRUE(at::equal(run.values(), low.values())) << zero;
    }
  });
}

}  // namespace
}  // namespace capstan
