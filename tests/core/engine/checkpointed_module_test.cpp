// Activation checkpointing of a program's own module.

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "capstan/capstan.hpp"
#include "capstan/layer.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

enum class Style { kPlain, kCheckpoint, kLayers, kRawWrite };

/// Three blocks with dropout and batch normalisation, whose closures capture what is gone after forward.
struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(Style s) : style(s), blocks(register_module("blocks", torch::nn::ModuleList())) {
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6), torch::nn::Tanh(),
                                              torch::nn::Dropout(0.2)));
    }
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    at::Tensor hidden = x;
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      const at::Tensor shift = x.mean(0);
      const auto block = [&](const at::Tensor& h) {
        ++calls;
        at::Tensor out = blocks->ptr<torch::nn::SequentialImpl>(i)->forward(h);
        if (style == Style::kRawWrite && i == 1) {
          out = out.sigmoid();
          out.data_ptr<float>()[0] = 3;
        }
        return out * out + shift;
      };
      const std::string name = "blocks." + std::to_string(i);
      if (style == Style::kPlain) {
        hidden = block(hidden);
      } else if (style == Style::kCheckpoint) {
        hidden = i == 0 ? checkpoint(block, hidden) : checkpoint(name, hidden, block);
      } else {
        hidden = layer(name, hidden, block);
      }
    }
    return torch::mse_loss(hidden, y);
  }

  Style style;
  torch::nn::ModuleList blocks;
  int calls = 0;
};
TORCH_MODULE(Tower);

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> tensors;
  int calls = 0;
};

Trained train(Style style, const std::string& more = "") {
  const TemporaryFolder folder;
  write_bytes(folder / "ds_config.json",
              R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_print": null,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.05}})" +
                  more + "}");
  torch::manual_seed(3);
  Tower tower(style);
  Engine engine = initialize(tower, (folder / "ds_config.json").string());
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    trained.losses.push_back(engine.train_batch([&] {
      Batch batch;
      batch.tensors = {{"input_ids", torch::randn({4, 6})}, {"labels", torch::randn({4, 6})}};
      return batch;
    }));
  }
  for (const at::Tensor& tensor : tower->parameters()) trained.tensors.push_back(tensor.detach().clone());
  for (const at::Tensor& tensor : tower->buffers()) trained.tensors.push_back(tensor.clone());
  trained.calls = tower->calls;
  return trained;
}

const std::string kRecompute = R"(, "capstan": {"recompute": {"check": "always"}})";

TEST(CheckpointedModule, TrainsBitByBitAsWithout) {
  const Trained plain = train(Style::kPlain);
  for (const Trained& again : {train(Style::kCheckpoint), train(Style::kLayers, kRecompute)}) {
    EXPECT_EQ(again.losses, plain.losses);
    ASSERT_EQ(again.tensors.size(), plain.tensors.size());
    for (std::size_t i = 0; i < plain.tensors.size(); ++i) EXPECT_TRUE(again.tensors[i].equal(plain.tensors[i])) << i;
    EXPECT_EQ(again.calls, plain.calls) << "code of the layers ran twice";
  }
}

TEST(CheckpointedModule, ThatWritesRawMemoryIsNamedInTheFirstStep) {
  EXPECT_THAT(
      [] { train(Style::kRawWrite, R"(, "capstan": {"recompute": {}})"); },
      ThrowsMessage<std::exception>(AllOf(HasSubstr("recomputed aten::sigmoid of layer 'blocks.1' differs from the "
                                                    "forward"),
                                          HasSubstr("data_ptr()"))));
}

TEST(CheckpointedModule, ThatCallsNoLayerIsSaidSoAfterTheFirstStep) {
  EXPECT_THAT([] { train(Style::kPlain, kRecompute); },
              ThrowsMessage<std::exception>(HasSubstr("none of the model's 3 layers ran through capstan::layer")));
}

}  // namespace
}  // namespace capstan
