// Sparse attention in an engine: on models that do not know of it, with everything else that an engine does.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <cmath>
#include <fstream>

#include "capstan/attention.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

constexpr const char* kShape = R"("layers": 2, "d": 32, "heads": 2, "seq": 50)";
constexpr const char* kFixed = R"("sparse_attention": {"mode": "fixed", "block": 8, "num_local_blocks": 2})";

std::vector<double> losses_of(const std::string& members, const std::string& capstan = "", int steps = 4) {
  ProbeRun run(capstan, members, kShape);
  return run.steps(steps);
}

TEST(SparseAttention, OfADenseLayoutChangesNothing) {
  const auto dense = losses_of(R"("sparse_attention": {"mode": "dense", "block": 16})"), none = losses_of("");
  for (std::size_t i = 0; i < none.size(); ++i) EXPECT_NEAR(dense[i], none[i], 1e-6) << i;
}

TEST(SparseAttention, ChangesWhatTheModelComputesAndLearns) {
  const auto sparse = losses_of(kFixed, "", 30);
  EXPECT_GT(std::abs(sparse.front() - losses_of("", "", 1).front()), 1e-5);
  EXPECT_LT(sparse.back(), sparse.front() - 0.5);
}

TEST(SparseAttention, IsThereInEvaluationToo) {
  ProbeRun sparse("", kFixed, kShape), dense("", "", kShape);
  const auto evaluated = [](ProbeRun& run) { return run.engine->eval_batch([&] { return run.batch(0); }, 1); };
  const double loss = evaluated(sparse);
  EXPECT_NE(loss, evaluated(dense));
  EXPECT_EQ(loss, sparse.step());
}

TEST(SparseAttention, IsRecomputedBitByBit) {
  EXPECT_EQ(losses_of(kFixed), losses_of(kFixed, R"("recompute": {"every": 1})"));
}

TEST(SparseAttention, IsTrainedInBFloat16AndUnderAutocast) {
  const auto full = losses_of(kFixed);
  for (const char* precision :
       {R"("bf16": {"enabled": true})", R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})"}) {
    const auto half = losses_of(std::string(kFixed) + ", " + precision);
    EXPECT_NEAR(half.front(), full.front(), 0.02) << precision;
    EXPECT_NE(half.front(), full.front()) << precision;
    EXPECT_LT(half.back(), half.front()) << precision;
  }
}

TEST(SparseAttention, SaysWhatACallsCausalityLeavesOut) {
  ::testing::internal::CaptureStderr();
  losses_of(kFixed, "", 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string notice =
      "sparse_attention.mode: The model's calls are causal, and stay so: what the layout sets above the diagonal is "
      "left "
      "out.";
  EXPECT_THAT(said, HasSubstr(notice));
  EXPECT_EQ(said.find(notice), said.rfind(notice)) << "it is said once";

  ::testing::internal::CaptureStderr();
  losses_of(R"("sparse_attention": {"block": 8, "attention": "unidirectional"})", "", 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("diagonal")));
}

TEST(SparseAttention, RefusesALayoutThatTheFirstBatchDoesNotFit) {
  EXPECT_THAT(
      [] { losses_of(R"("sparse_attention": {"block": 64})"); },
      ThrowsMessage<std::exception>(HasSubstr("sparse_attention.mode: attention 'fixed': a block has 64 tokens, "
                                              "and a sequence 50.")));
  EXPECT_THAT([] { losses_of(R"("sparse_attention": {"mode": "bigbird", "num_random_blocks": 5})"); },
              ThrowsMessage<std::exception>(HasSubstr("num_random_blocks: 5 is above the 4 blocks of a sequence.")));
}

constexpr int kSteps = 3;
TEST(SparseAttention, TrainsTheSameAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    std::vector<std::vector<double>> losses;
    for (const int stage : {0, 1, 2, 3}) {
      ProbeRun run("",
                   std::string(kFixed) + R"(, "zero_optimization": {"stage": )" + std::to_string(stage) +
                       R"(, "stage3_param_persistence_threshold": 0})",
                   kShape, ranks);
      losses.push_back(run.steps(kSteps));
    }
    for (std::size_t stage = 1; stage < losses.size(); ++stage) EXPECT_EQ(losses[stage], losses[0]) << stage;
  });
}

/// Attention as programs write it; `how` says by which operator.
struct NetImpl : torch::nn::Module {
  using How = std::function<at::Tensor(at::Tensor q, at::Tensor k, at::Tensor v)>;
  static constexpr std::int64_t kWidth = 16, kHeads = 2;
  explicit NetImpl(How attend)
      : attention(std::move(attend)),
        embedding(register_module("embedding", torch::nn::Embedding(32, kWidth))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        head(register_module("head", torch::nn::Linear(kWidth, 32))) {}

  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& labels) {
    const auto rows = ids.size(0), tokens = ids.size(1);
    const auto parts = qkv(embedding(ids)).view({rows, tokens, 3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = attention(parts[0], parts[1], parts[2]).transpose(1, 2).reshape({rows, tokens, kWidth});
    return torch::nn::functional::cross_entropy(head(mixed).flatten(0, 1), labels.flatten());
  }
  How attention;
  torch::nn::Embedding embedding;
  torch::nn::Linear qkv, head;
};

class ProgramsModel : public ::testing::Test {
 protected:
  /// The losses of a few steps on one batch.
  std::vector<double> train(const NetImpl::How& how, const std::string& section, int steps = 3) {
    const std::string path = (folder_.path() / "config.json").string();
    std::ofstream(path) << R"({"train_batch_size": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.01}})" << section
                        << "}";
    torch::manual_seed(3);
    Engine engine = initialize(std::make_shared<NetImpl>(how), path);
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(engine.train_batch([] {
        const auto ids = (torch::arange(2 * 37).square() * 7).remainder(31).view({2, 37});
        Batch batch;
        batch.tensors = {{"input_ids", ids}, {"labels", ids}};
        return batch;
      }));
    }
    return losses;
  }
  static constexpr const char* kSparse = R"(, "sparse_attention": {"mode": "bslongformer", "block": 4})";

  test::TemporaryFolder folder_;
};

at::Tensor by_operator(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v);
}
at::Tensor by_products(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::matmul(at::softmax(at::matmul(q, k.transpose(-1, -2)) / std::sqrt(8.0), -1), v);
}

TEST_F(ProgramsModel, IsSparseUnchanged) {
  const auto sparse = train(by_operator, kSparse), dense = train(by_operator, "");
  EXPECT_NE(sparse, dense);
  EXPECT_LT(sparse.back(), sparse.front());
}

TEST_F(ProgramsModel, IsToldOfTheFunctionWhereItComputesAttentionByHand) {
  EXPECT_THAT(
      [&] { train(by_products, kSparse); },
      ThrowsMessage<RuntimeFault>(
          AllOf(HasSubstr("sparse_attention.mode: the model calls no scaled_dot_product_attention, so there is nothing "
                          "to make sparse."),
                HasSubstr("capstan::attention(q, k, v) of capstan/attention.hpp"))));
}

TEST_F(ProgramsModel, CallsTheFunctionInTheOperatorsPlace) {
  const auto by_function = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return attention(q, k, v);
  };
  EXPECT_EQ(train(by_function, kSparse), train(by_operator, kSparse));
  EXPECT_EQ(train(by_function, ""), train(by_operator, ""));
}

TEST_F(ProgramsModel, KeepsCallsDenseThatCannotBeSparseAndSaysSo) {
  const auto twice = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    at::Tensor sum = at::scaled_dot_product_attention(q, k, v, {}, 0.1);
    sum = sum + at::scaled_dot_product_attention(q, k.narrow(2, 0, 9), v.narrow(2, 0, 9));
    return sum + at::scaled_dot_product_attention(q, k, v);
  };
  ::testing::internal::CaptureStderr();
  train(twice, kSparse, 2);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("2 of 3 calls of attention stay dense: call 1 has dropout 0.1, call 2 is of 37 queries and 9 keys."));
}

TEST_F(ProgramsModel, IsRefusedWhereAllCallsStayDense) {
  const auto dropping = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0.25);
  };
  EXPECT_THAT(
      [&] { train(dropping, kSparse); },
      ThrowsMessage<RuntimeFault>(HasSubstr("none of the model's 1 calls of attention can be sparse: call 1 has "
                                            "dropout 0.25.")));
}

TEST_F(ProgramsModel, MayHaveFewerHeadsOfKeysOrNoHeadsAtAll) {
  const auto grouped = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return at::scaled_dot_product_attention(q, k.narrow(1, 0, 1), v.narrow(1, 0, 1), {}, 0.0, false, {}, true);
  };
  const auto repeated = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return at::scaled_dot_product_attention(q, k.narrow(1, 0, 1).repeat({1, 2, 1, 1}),
                                            v.narrow(1, 0, 1).repeat({1, 2, 1, 1}));
  };
  const auto flat = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return at::scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view(q.sizes());
  };
  const auto expected = train(repeated, kSparse), found = train(grouped, kSparse);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5);
  EXPECT_EQ(train(flat, kSparse), train(by_operator, kSparse));
}

TEST_F(ProgramsModel, MasksAsTheOperatorDoes) {
  // A dense layout, so that the operator itself says what is right.
  const std::string dense = R"(, "sparse_attention": {"mode": "dense", "block": 4})";
  const auto mask = torch::ones({37, 37}, torch::kBool).tril();
  const auto padding = torch::arange(37).lt(30).view({1, 37}).expand({2, 37});
  const auto bias = torch::linspace(-1, 1, 37 * 37).view({37, 37});
  const std::vector<NetImpl::How> ways = {
      [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return at::scaled_dot_product_attention(q, k, v, mask);
      },
      [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return at::scaled_dot_product_attention(q, k, v, bias, 0.0, false, 0.3);
      },
      [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return attention(q, k, v,
                         {.key_padding_mask = padding, .attn_mask = mask.to(torch::kFloat), .relative_position = bias});
      },
      [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return attention(q, k, v,
                         {.key_padding_mask = padding.to(torch::kFloat),
                          .key_padding_mask_mode = MaskMode::kMultiply,
                          .attn_mask = bias,
                          .attn_mask_mode = MaskMode::kAdd,
                          .scale = 0.2,
                          .causal = true});
      }};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    const auto found = train(ways[way], dense), expected = train(ways[way], "");
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << way << i;
  }
}

}  // namespace
}  // namespace capstan
