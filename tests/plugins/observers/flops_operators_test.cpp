// The profiler's count of single operators, forward and backward, against formulas by hand.

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/memory/tensor_handle.hpp"
#include "tests/core/engine/small_model.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

struct Counted {
  double flops, macs, backward_macs;
};

/// One training step of a model whose loss is the sum of `function` of a trainable tensor of ones.
Counted counted(at::IntArrayRef shape, std::function<at::Tensor(const at::Tensor&)> function) {
  struct OneTensor {
    at::Tensor parameter;
    std::function<at::Tensor(const at::Tensor&)> function;
  } model{at::zeros(shape).fill_(1).requires_grad_(), std::move(function)};
  static const capstan_model kTable = [] {
    capstan_model table{};
    table.struct_size = sizeof table;
    table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      visitor->tensor(visitor->ctx, as_str("p"), handle_of(static_cast<OneTensor*>(self)->parameter),
                      CAPSTAN_ROLE_PARAMETER);
      return CAPSTAN_OK;
    };
    table.forward = [](void* self, capstan_batch*, capstan_tensor* loss, capstan_error*) {
      auto& one = *static_cast<OneTensor*>(self);
      *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(one.function(one.parameter).sum()));
      return CAPSTAN_OK;
    };
    table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
    return table;
  }();
  const TemporaryFolder folder;
  PluginIndex plugins;
  const Config config =
      load_config({R"({"train_batch_size": 1, "steps_per_print": null, "gradient_clipping": 0,
           "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "capstan": {"observers": [{"type": "flops_profiler",
           "params": {"profile_step": 0, "peak_tflops": 1, "output_file": ")" +
                       (folder / "report").string() + "\", \"json_file\": \"" + (folder / "json").string() + "\"}}]}}",
                   "test", false},
                  {}, plugins);
  Engine engine(Model(
                    &kTable, &model, [](void*) {}, "one tensor"),
                config, plugins);
  engine.train_batch([] { return Batch(); });
  const Json profile = Json::parse(read_bytes(folder / "json")).at("model");
  return {profile.at("forward").at("flops").as_number(), profile.at("forward").at("macs").as_number(),
          profile.at("backward").at("macs").as_number()};
}

TEST(FlopsOf, LinearCountsNoBias) {
  const Counted linear = counted({8, 5}, [](const at::Tensor& weight) {
    return at::linear(at::zeros({2, 3, 5}).fill_(1), weight, at::zeros({8}));
  });
  EXPECT_EQ(linear.macs, 2 * 3 * 5 * 8);
  EXPECT_EQ(linear.flops, 2 * linear.macs);
  EXPECT_EQ(linear.backward_macs, linear.macs);  // the weight's gradient alone: the input has none
}

TEST(FlopsOf, AddmmCountsWhatItAdds) {
  const Counted sum = counted({4, 5}, [](const at::Tensor& matrix) {
    return at::addmm(at::zeros({3, 5}), at::zeros({3, 4}), matrix);
  });
  EXPECT_EQ(sum.macs, 3 * 4 * 5);
  EXPECT_EQ(sum.flops, 2 * 3 * 4 * 5 + 3 * 5);
}

TEST(FlopsOf, MatmulOfVectorsAndBroadcastBatches) {
  EXPECT_EQ(counted({4}, [](const at::Tensor& v) { return at::matmul(at::zeros({3, 4}), v); }).macs, 3 * 4);
  EXPECT_EQ(counted({4, 6},
                    [](const at::Tensor& m) {
                      return at::matmul(at::zeros({7, 2, 3, 4}), m);
                    })
                .macs,
            7 * 2 * 3 * 4 * 6);
}

TEST(FlopsOf, ConvolutionsCountWindowsGroupsAndBias) {
  // [2, 4, 9, 9] by [6, 2, 3, 3], 2 groups, stride 2, padding 1: 5 x 5.
  const Counted grouped = counted({6, 2, 3, 3}, [](const at::Tensor& weight) {
    return at::conv2d(at::zeros({2, 4, 9, 9}).requires_grad_(), weight, at::zeros({6}), 2, 1, 1, 2);
  });
  const double macs = 2 * 6 * 5 * 5 * (2 * 3 * 3);
  EXPECT_EQ(grouped.macs, macs);
  EXPECT_EQ(grouped.flops, 2 * macs + 2 * 6 * 5 * 5);
  EXPECT_EQ(grouped.backward_macs, 2 * macs);

  // [2, 4, 5, 5] by [4, 3, 3, 3], stride 2: every input element meets 3 x 3 x 3 weights; the result is 11 x 11.
  const Counted transposed = counted({4, 3, 3, 3}, [](const at::Tensor& weight) {
    return at::conv_transpose2d(at::zeros({2, 4, 5, 5}), weight, at::zeros({3}), 2);
  });
  EXPECT_EQ(transposed.macs, 2 * 4 * 5 * 5 * 27);
  EXPECT_EQ(transposed.flops, 2 * transposed.macs + 2 * 3 * 11 * 11);
  EXPECT_EQ(transposed.backward_macs, transposed.macs);
}

TEST(FlopsOf, AttentionCountsBothProductsAndFiveInBackward) {
  const Counted attention = counted({2, 3, 8, 4}, [](const at::Tensor& query) {
    return at::scaled_dot_product_attention(query, query, query, {}, 0.0, true);
  });
  const double product = 2 * 3 * 8 * 8 * 4;
  EXPECT_EQ(attention.macs, 2 * product);  // no discount for the causal half
  EXPECT_EQ(attention.flops, 4 * product);
  EXPECT_EQ(attention.backward_macs, 5 * product);
}

TEST(FlopsOf, EinsumIsTheProductsThatItIsMadeOf) {
  const Counted einsum = counted({3, 4, 5}, [](const at::Tensor& tensor) {
    return at::einsum("bij,bkj->bik", {tensor, at::zeros({3, 6, 5})});
  });
  EXPECT_EQ(einsum.macs, 3 * 4 * 6 * 5);
  EXPECT_EQ(einsum.flops, 2 * einsum.macs);
}

TEST(FlopsOf, NormsCountFourAnElementAndOneForTheAffinePart) {
  const double elements = 2 * 6 * 4;
  const at::Tensor x = at::zeros({2, 6, 4}), six = at::zeros({6});
  EXPECT_EQ(counted({4}, [&](const at::Tensor& w) { return at::layer_norm(x, {4}, w, w); }).flops, 5 * elements);
  EXPECT_EQ(counted({2, 6, 4}, [&](const at::Tensor& p) { return at::layer_norm(p, {4}); }).flops, 4 * elements);
  EXPECT_EQ(counted({6}, [&](const at::Tensor& w) { return at::group_norm(x, 3, w, w); }).flops, 5 * elements);
  const auto batch_norm = [&](const at::Tensor& w, bool training) {
    return at::batch_norm(x, w, w, six.clone(), six.clone(), training, 0.1, 1e-5, false);
  };
  EXPECT_EQ(counted({6}, [&](const at::Tensor& w) { return batch_norm(w, true); }).flops, 5 * elements);
  EXPECT_EQ(counted({6}, [&](const at::Tensor& w) { return batch_norm(w, false); }).flops, 2 * elements);
}

TEST(FlopsOf, ElementwiseOperatorsCountTheirElements) {
  EXPECT_EQ(counted({3, 4}, [](const at::Tensor& p) { return at::relu(p); }).flops, 12);
  EXPECT_EQ(counted({3, 4}, [](const at::Tensor& p) { return at::softmax(p, 1); }).flops, 12);
  EXPECT_EQ(counted({3, 1}, [](const at::Tensor& p) { return p + at::zeros({5, 1, 4}); }).flops, 5 * 3 * 4);
  EXPECT_EQ(counted({3, 4}, [](const at::Tensor& p) { return p * 2; }).flops, 12);
  EXPECT_EQ(counted({1, 2, 3, 3},
                    [](const at::Tensor& p) {
                      return at::upsample_nearest2d(p, {6, 6});
                    })
                .flops,
            2 * 6 * 6);
}

TEST(FlopsOf, EmbeddingsAndLossesCountNothing) {
  EXPECT_EQ(counted({5, 4}, [](const at::Tensor& p) { return at::embedding(p, at::zeros({7}).to(at::kLong)); }).flops,
            0);
  EXPECT_EQ(counted({5, 4}, [](const at::Tensor& p) { return at::mse_loss(p, at::zeros({5, 4})); }).flops, 0);
}

}  // namespace
}  // namespace capstan
